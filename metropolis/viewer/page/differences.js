// How a run and its branch differ: by what agents do, say and think, step by step.

import { element } from "./elements.js";
import { count, plural, titleOf, worldTime } from "./format.js";

const SHOWN_MAX = 300;

// Fills `page.differences`: {first, list: [{step, agent, here, there}], isComplete}.
export async function compare(page) {
  const [one, other] = page.sides;
  const found = (page.differences = { first: null, list: [], isComplete: false });
  const from = one.meta.forked?.step ?? other.meta.forked?.step ?? 0;
  const numberOf = new Map(other.meta.agents.map((name, agent) => [name, agent]));
  const steps = Math.min(one.meta.steps, other.meta.steps);
  const byStep = new Map(); // "step agent" -> {here, there}
  const read = async (side, field, agentOf) => {
    await side.scanMoments(
      (moments) => {
        for (const [step, agent, kind, text] of moments) {
          const known = agentOf(agent);
          if (step < from || step >= steps || known === undefined) continue;
          const key = `${step} ${known}`;
          const each = byStep.get(key) ?? { step, agent: known, here: "", there: "" };
          each[field] += `${each[field] ? " · " : ""}${kind === "does" ? "" : `${kind} `}${text}`;
          byStep.set(key, each);
        }
      },
      () => false,
    );
  };
  const names = new Map([...numberOf].map(([name, agent]) => [agent, one.meta.agents.indexOf(name)]));
  await read(one, "here", (agent) => agent);
  await read(other, "there", (agent) => (names.get(agent) < 0 ? undefined : names.get(agent)));
  const differing = [...byStep.values()].filter(({ here, there }) => here !== there);
  differing.sort((a, b) => a.step - b.step || a.agent - b.agent);
  found.list = differing;
  found.first = differing.length ? differing[0].step : null;
  found.isComplete = true;
  const at = [new Float32Array(2), new Float32Array(2)];
  page.differs = (agent, moment) => {
    const twin = numberOf.get(one.meta.agents[agent]);
    const step = moment.steps[agent];
    if (twin === undefined || step < from) return false;
    if (!one.position(agent, step, at[0]) || !other.position(twin, step, at[1])) return false;
    if (at[0][0] !== at[1][0] || at[0][1] !== at[1][1]) return true;
    return (one.doing(agent, step)?.label ?? "") !== (other.doing(twin, step)?.label ?? "");
  };
  page.panel.update();
  page.invalidate();
}

// The panel's list of differences.
export function differenceParts(page, panel) {
  const { first, list, isComplete } = page.differences;
  const [one] = page.sides;
  const title = first !== null ? `They part at step ${count(first)}` : isComplete ? "No difference" : "Comparing…";
  const subtitle = first === null ? null : `${worldTime(one, first)} · ${plural(list.length, "difference")}${isComplete ? "" : " so far"}`;
  return [
    panel.heading(title, subtitle, null),
    element("ol", { class: "moments" }, ...list.slice(0, SHOWN_MAX).map((difference) => differenceRow(page, difference))),
    list.length > SHOWN_MAX ? element("p", { class: "quiet" }, `The first ${SHOWN_MAX} are shown.`) : null,
  ];
}

function differenceRow(page, { step, agent, here, there }) {
  const [one, other] = page.sides;
  const half = (side, text) => element("span", { class: "half" }, element("span", { class: "quiet" }, `${titleOf(side.meta)}: `), text || "—");
  const name = element("b", {}, one.meta.agents[agent]);
  const row = element("button", { class: "row", onclick: () => page.show(0, agent, step) }, element("span", { class: "when" }, worldTime(one, step)), element("span", { class: "grow" }, name, half(one, here), half(other, there)));
  return element("li", { class: "difference" }, row);
}
