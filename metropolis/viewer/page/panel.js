// The panel beside the stage: a person, a call, results of a search, differences, meetings.

import { differenceParts } from "./differences.js";
import { element, keepFocus, onlyFirst } from "./elements.js";
import { count, plural, seconds, titleOf, worldTime } from "./format.js";
import { FINISHED, WAITING } from "./moment.js";
import { FAILED, WASTED } from "./side.js";

const NEAR_STEPS = 360;
const SHOWN_MAX = 60;
const HEARD_MAX = 300;

export class Panel {
  constructor(page, root) {
    this.page = page;
    this.root = root;
    this.key = null;
  }

  // Build it again if what it shows has changed.
  update(force = true) {
    const { page } = this;
    const { selected, side, view, call } = page.state;
    const moment = page.moments[side];
    const step = selected === null ? moment.front : moment.steps[selected];
    const key = `${side} ${selected} ${step} ${view} ${call?.index} ${moment.status[selected ?? 0]} ${moment.blockedBy[selected ?? 0]}`;
    if (!force && key === this.key) return;
    this.key = key;
    const top = this.root.scrollTop;
    const content = this.content().filter((child) => child !== null);
    keepFocus(this.root, () => this.root.replaceChildren(...content));
    this.root.scrollTop = top;
    document.body.classList.toggle("has-panel", this.root.childElementCount > 0);
    const near = this.root.querySelector(".near");
    if (near !== null) scrollToPresent(near);
  }

  content() {
    const { page } = this;
    const side = page.sides[page.state.side];
    if (page.state.call !== null) return this.callParts(side, page.state.call);
    if (page.search.hits !== null) return page.search.parts();
    if (page.state.selected !== null) return this.personParts(side, page.state.selected);
    if (page.state.view === "social") return this.socialParts(side);
    if (page.differences !== null) return differenceParts(page, this);
    return [];
  }

  heading(title, subtitle, close) {
    return element(
      "header",
      {},
      element("div", {}, element("h2", {}, title), subtitle ? element("p", { class: "quiet" }, subtitle) : null),
      close ? element("button", { class: "icon", "aria-label": "Close", title: "Close (Esc)", onclick: close }, "✕") : null,
    );
  }

  // Words on a side: of two sides with its name.
  whose(side, words) {
    return this.page.sides.length > 1 ? `${titleOf(side.meta)} · ${words}` : words;
  }

  // --- a person

  personParts(side, agent) {
    const { page } = this;
    const moment = page.moments[side.index];
    const step = moment.steps[agent];
    const doing = side.doing(agent, step);
    const name = side.meta.agents[agent];
    const where = `step ${count(step)} · ${worldTime(side, step)}`;
    return [
      this.heading(name, this.whose(side, where), () => page.select(side.index, null)),
      doing?.label || doing?.place
        ? element(
            "p",
            { class: "doing" },
            element("span", { class: "emoji" }, doing.emoji ?? ""),
            element("span", {}, doing.label ?? "", doing.place ? element("span", { class: "quiet" }, ` — ${doing.place}`) : null),
          )
        : null,
      element("p", { class: "status" }, ...this.statusParts(side, moment, agent)),
      element(
        "div",
        { class: "actions" },
        element("button", { "aria-pressed": String(page.state.follows), onclick: () => page.follow() }, "Follow"),
        element("button", { onclick: () => page.leap(-1) }, "◂ previous"),
        element("button", { onclick: () => page.leap(1) }, "next ▸"),
      ),
      this.callsOfStep(side, agent, step),
      this.momentParts(side, agent, step),
      this.memoryParts(side, agent, step),
    ];
  }

  statusParts(side, moment, agent) {
    if (moment.basis === "step") {
      const others = moment.coupled(agent);
      return others.length ? ["acts together with ", ...this.names(side, others)] : [];
    }
    const lead = moment.steps[agent] - moment.floor;
    const ahead = lead ? `${plural(lead, "step")} ahead of the floor` : "at the floor";
    if (moment.status[agent] === FINISHED) return ["has finished"];
    if (moment.status[agent] === WAITING) {
      const blocker = moment.blockedBy[agent];
      const whom = blocker < 0 ? ["others of its step"] : this.names(side, [blocker]);
      return ["waits for ", ...whom, ` · ${ahead}`];
    }
    const others = moment.coupled(agent);
    return ["runs", ...(others.length ? [" together with ", ...this.names(side, others)] : []), ` · ${ahead}`];
  }

  names(side, agents) {
    const parts = [];
    agents.slice(0, 6).forEach((agent, at) => {
      if (at) parts.push(", ");
      parts.push(this.nameLink(side, agent));
    });
    if (agents.length > 6) parts.push(` and ${plural(agents.length - 6, "other")}`);
    return parts;
  }

  nameLink(side, agent) {
    return element("a", { href: this.page.address.of({ side: side.index, selected: agent }), onclick: (event) => this.go(event, () => this.page.select(side.index, agent)) }, side.meta.agents[agent]);
  }

  go(event, action) {
    event.preventDefault();
    action();
  }

  callsOfStep(side, agent, step) {
    const execution = side.execution(agent, step);
    if (execution === null || Number.isNaN(execution.dispatched)) return null;
    const until = Number.isNaN(execution.committed) ? side.meta.end_s : execution.committed;
    const rows = [];
    // an answer may have come for an earlier execution, which was wrong
    const from = side.meta.mode === "optimistic" ? -Infinity : execution.dispatched - 1e-3;
    for (const calls of side.callsBetween(from, until + 1e-3)) {
      for (let at = calls.offsets[agent]; at < calls.offsets[agent + 1]; at += 1) {
        if (calls.step[calls.order[at]] === step) rows.push([calls, calls.order[at]]);
      }
    }
    if (!rows.length) return null;
    return element(
      "section",
      {},
      element("h3", {}, `${plural(rows.length, "call")} in this step`),
      element("ul", { class: "calls" }, ...rows.slice(0, SHOWN_MAX).map(([calls, row]) => this.callRow(side, calls, row))),
      onlyFirst(rows, SHOWN_MAX),
    );
  }

  callRow(side, calls, row) {
    const name = side.meta.functions[calls.function[row]] ?? "";
    return element(
      "li",
      {},
      element(
        "button",
        { class: "row", onclick: () => this.page.openCall(side.index, calls, row) },
        swatch(this.page.functionCategory(side, calls.function[row])),
        element("span", { class: "grow" }, name),
        element("span", { class: "quiet" }, seconds(calls.completed[row] - calls.sent[row])),
      ),
    );
  }

  momentParts(side, agent, step) {
    const found = side.momentsOf(agent, Math.max(0, step - NEAR_STEPS), step + NEAR_STEPS / 6);
    const upcoming = found.findIndex(([at]) => at > step);
    const now = upcoming < 0 ? found.length : upcoming;
    const shown = found.slice(Math.max(0, now - 40), now + 8);
    if (!shown.length) return null;
    return element(
      "section",
      {},
      element("h3", {}, "What it did, said and thought"),
      element("ol", { class: "moments near" }, ...shown.map((moment) => this.momentRow(side, moment, moment[0] > step))),
    );
  }

  momentRow(side, [step, agent, kind, text, extra], isLater, who = null) {
    const mark = { does: extra?.emoji || "•", says: "“", thinks: "…" }[kind] ?? "◆";
    const whom = kind === "says" && extra?.to?.length ? ` → ${extra.to.map((other) => side.meta.agents[other]).join(", ")}` : "";
    return element(
      "li",
      { class: `${kind}${isLater ? " later" : ""}` },
      element(
        "button",
        { class: "row", onclick: () => this.page.show(side.index, agent, step) },
        element("span", { class: "when" }, worldTime(side, step)),
        element("span", { class: "mark" }, mark),
        element(
          "span",
          { class: "grow" },
          who,
          ["does", "says", "thinks"].includes(kind) ? null : element("span", { class: "quiet" }, `${kind} `),
          element("span", { class: "text" }, text),
          whom ? element("span", { class: "quiet" }, whom) : null,
        ),
      ),
    );
  }

  memoryParts(side, agent, step) {
    const details = element("details", { open: this.showsMemories === true });
    details.append(element("summary", {}, "What it remembers"));
    const body = element("div", { class: "memories" });
    details.append(body);
    const fill = async () => {
      this.showsMemories = details.open;
      if (!details.open || body.childElementCount) return;
      body.textContent = "…";
      try {
        const { memories, note } = await side.mind(agent, step);
        const known = memories ?? []; // the newest ones are first
        const list = known.slice(0, SHOWN_MAX);
        const cut = list.length < known.length ? `The newest ${list.length} of ${known.length} are shown.` : null;
        body.replaceChildren(
          ...[note, cut].filter(Boolean).map((sentence) => element("p", { class: "quiet" }, sentence)),
          element("ol", { class: "moments" }, ...list.map((each) => element("li", {}, element("span", { class: "text" }, each.text), each.kind ? element("span", { class: "quiet" }, ` ${each.kind}`) : null))),
        );
      } catch (error) {
        body.replaceChildren(element("p", { class: "quiet" }, error.message));
      }
    };
    details.addEventListener("toggle", fill);
    if (details.open) fill();
    return details;
  }

  // --- a call

  callParts(side, { calls, row, index }) {
    const { page } = this;
    const { meta } = side;
    const agent = calls.agent[row];
    const step = calls.step[row];
    const queued = calls.started[row] - calls.sent[row];
    const flags = calls.flags[row];
    const facts = [
      ["agent", this.nameLink(side, agent)],
      ["step", `${count(step)} · ${worldTime(side, step)}`],
      ["sent", seconds(calls.sent[row])],
      Number.isNaN(queued) ? null : ["queue", seconds(queued)],
      ["duration", seconds(calls.completed[row] - calls.sent[row])],
      ["tokens", `${count(calls.prompt[row])} in, ${count(calls.output[row])} out`],
      ["model", meta.models[calls.model[row]] ?? "–"],
      calls.instance[row] < 0 ? null : ["instance", String(calls.instance[row])],
      flags & FAILED ? ["", "failed"] : null,
      flags & WASTED ? ["", "sent in vain: the step was repeated without it"] : null,
    ].filter((each) => each !== null);
    const texts = element("div", {}, element("p", { class: "quiet" }, "…"));
    side.callText(index).then(
      (text) => {
        texts.replaceChildren(
          ...(text?.prompt === null || text?.prompt === undefined
            ? [element("p", { class: "quiet" }, text?.note ?? "The run did not keep the texts of calls (--keep-text does).")]
            : [element("h3", {}, "Prompt"), element("pre", {}, text.prompt)]),
          ...(text?.completion === null || text?.completion === undefined ? [] : [element("h3", {}, "Answer"), element("pre", {}, text.completion)]),
        );
      },
      (error) => texts.replaceChildren(element("p", { class: "quiet" }, error.message)),
    );
    return [
      this.heading(meta.functions[calls.function[row]] ?? "call", null, () => page.state.set({ call: null })),
      element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])),
      texts,
    ];
  }

  // --- meetings and news

  socialParts(side) {
    const social = this.page.viewOn(side.index);
    if (social?.pairs === undefined) return [];
    const pairs = social.pairs();
    const input = element("input", { type: "search", placeholder: "a word, a name, an event", value: social.news?.words ?? "", "aria-label": "News" });
    const form = element("form", { class: "news", onsubmit: (event) => this.go(event, () => this.page.views.social.forEach((view) => view.trace(input.value.trim()))) }, input, element("button", {}, "Follow"));
    const until = this.page.moments[side.index].front;
    const heard = [...(social.news?.heard ?? [])].filter(([agent]) => social.knows(agent)).sort((a, b) => a[1].step - b[1].step);
    if (social.meetings?.length === 0) return [this.heading("Who spoke to whom", "No speech is recorded.", null)];
    return [
      this.heading("Who spoke to whom", this.whose(side, `until step ${count(until)} · ${plural(pairs.length, "pair")}`), null),
      element("section", {}, element("h3", {}, "How news spread"), form, social.news ? element("p", { class: "quiet", role: "status" }, `${plural(heard.length, "agent")} of ${count(side.agents)} said, heard or thought it`) : null),
      social.news
        ? element(
            "ol",
            { class: "moments" },
            ...heard.slice(0, HEARD_MAX).map(([agent, { step, from, text }]) =>
              element(
                "li",
                {},
                element(
                  "button",
                  { class: "row", onclick: () => this.page.show(side.index, agent, step) },
                  element("span", { class: "when" }, worldTime(side, step)),
                  element("span", { class: "grow" }, element("b", {}, side.meta.agents[agent]), from === null ? "" : ` from ${side.meta.agents[from]}`, element("span", { class: "text quiet" }, ` ${text}`)),
                ),
              ),
            ),
          )
        : this.pairParts(side, pairs),
    ];
  }

  pairParts(side, pairs) {
    if (!pairs.length) return element("p", { class: "quiet" }, "Nobody has spoken to anybody yet.");
    const row = ({ a, b, count: times, last }) =>
      element("tr", {}, element("td", {}, this.nameLink(side, a)), element("td", {}, this.nameLink(side, b)), element("td", { class: "number" }, count(times)), element("td", { class: "when" }, worldTime(side, last)));
    const head = element("tr", {}, element("th", { colspan: 2 }, "pair"), element("th", { class: "number" }, "times"), element("th", {}, "last"));
    return element("div", {}, element("table", {}, head, ...pairs.slice(0, SHOWN_MAX).map(row)), onlyFirst(pairs, SHOWN_MAX));
  }
}

// The last moment before the first later one stands at the bottom, which shows a part of that.
function scrollToPresent(list) {
  const later = list.querySelector(".later");
  if (later === null) list.scrollTop = list.scrollHeight;
  else list.scrollTop = later.offsetTop - list.clientHeight + Math.min(60, later.offsetHeight);
}

function swatch(name) {
  const made = element("span", { class: "swatch" });
  made.style.background = `var(--${name})`; // allowed by the policy: it is set by script, and not by markup
  return made;
}
