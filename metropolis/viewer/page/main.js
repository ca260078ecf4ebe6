// Starts the page: loads the sides, and connects state, views, panel and transport.

import { Address } from "./address.js";
import { Calls } from "./calls.js";
import { CATEGORIES_TOLD_APART, category, theme } from "./colours.js";
import { byId, element } from "./elements.js";
import { count, modeName, plural, seconds, titleOf } from "./format.js";
import { follow } from "./live.js";
import { compare, differs } from "./differences.js";
import { listenToKeys } from "./keys.js";
import { drawLegend } from "./legend.js";
import { LeadScale, Moment } from "./moment.js";
import { Panel } from "./panel.js";
import { Search } from "./search.js";
import { Side } from "./side.js";
import { Social } from "./social.js";
import { Chunks, asFloats, asJSON, openSource } from "./source.js";
import { State, remember, remembered } from "./state.js";
import { Steps } from "./steps.js";
import { Town } from "./town.js";
import { Transport } from "./transport.js";

const CALLS_ENOUGH = 2000;
const VIEWS = { town: Town, steps: Steps, calls: Calls, social: Social };

class Page {
  constructor(source, chunks) {
    this.source = source;
    this.chunks = chunks;
    this.state = new State();
    this.leads = new LeadScale();
    this.version = 0; // increases when the run has grown, or chunks have come
    this.differences = null;
    this.showsWaits = true;
    this.views = {}; // name -> a view for each side
    this.theme = theme();
  }

  start(sides) {
    this.sides = sides;
    this.moments = sides.map((side) => new Moment(side));
    this.search = new Search(this);
    this.panel = new Panel(this, byId("panel"));
    this.transport = new Transport(this);
    const kinds = sides.map((side) => side.meta);
    this.isBranch = sides.length > 1 && kinds.some((meta) => meta.forked || meta.kind === "run");
    this.awaitsTimes = !this.isBranch;
    document.body.classList.toggle("two", sides.length > 1);
    this.describe();
    this.listen();
    this.open(this.state.view);
    this.state.onChange((changes) => this.changed(changes));
    if (this.isBranch) {
      compare(this);
      this.state.at = Math.min(kinds.find((meta) => meta.forked)?.forked.step ?? 0, this.transport.end);
    }
    if (this.source.isServed && kinds.some((meta) => meta.live)) follow(this);
    this.address = new Address(this, Object.keys(VIEWS));
    this.changed({});
    this.address.read();
    let before = performance.now();
    const frame = (now) => {
      requestAnimationFrame(frame);
      this.transport.play(Math.min(0.25, (now - before) / 1000));
      before = now;
      this.draw();
    };
    requestAnimationFrame(frame);
    document.body.dataset.state = "ready";
  }

  // --- what is shown

  // The agent of a side that has the name of an agent of another one; null: there is none.
  twin(side, agent, other) {
    return side === other ? agent : (other.numbers.get(side.meta.agents[agent]) ?? null);
  }

  // The agent that is selected, as an agent of this side, or null.
  selectedOn(side) {
    const { selected } = this.state;
    return selected === null ? null : this.twin(this.sides[this.state.side], selected, side);
  }

  differs(side, agent, moment) {
    return this.isBranch && differs(this, side, agent, moment);
  }

  get hasTimes() {
    return this.sides.every(({ meta }) => meta.counts.executions > 0 && meta.end_s > 0);
  }

  // Show a run by time, as soon as it has times: a run that begins has none.
  chooseBasis() {
    byId("by-time").disabled = !this.hasTimes;
    if (!this.awaitsTimes || !this.hasTimes) return;
    this.awaitsTimes = false;
    if (!this.state.isLive && this.state.at !== 0) return;
    this.state.basis = "time";
    this.state.at = this.transport.end / 3; // at the very beginning little has happened
  }

  viewOn(index) {
    return this.views[this.state.view]?.[index] ?? null;
  }

  describe() {
    const { meta } = this.sides[0];
    document.title = `${this.sides.map((side) => titleOf(side.meta)).join(" and ")} · metropolis`;
    byId("title").textContent = this.sides.map((side) => titleOf(side.meta)).join(" / ");
    const stepsOf = ({ meta: { steps, target } }) => (target && target !== steps ? `${count(steps)} of ${count(target)} steps` : plural(steps, "step"));
    const steps = [...new Set(this.sides.map(stepsOf))].join(" / ");
    const facts = []; // of the first side, as far as those of a second one are the same
    if (meta.counts.executions && !this.isBranch) facts.push(plural(meta.calls, "call"));
    if (meta.counts.executions && this.sides.length === 1) facts.push(seconds(meta.end_s));
    const clock = meta.clock === "simulated" ? ["simulated time"] : [];
    const parts = [...this.raceParts(), plural(meta.agents.length, "agent"), steps, ...facts, ...clock];
    byId("facts").textContent = parts.join(" · ");
    byId("facts").title = byId("facts").textContent;
    const noted = this.sides.filter((side) => side.meta.note);
    const isShared = new Set(this.sides.map((side) => side.meta.note)).size === 1;
    byId("note").textContent = isShared ? meta.note : noted.map((side) => `${titleOf(side.meta)}: ${side.meta.note}`).join(" ");
  }

  // How much faster the faster side of a race is.
  raceParts() {
    if (this.sides.length < 2 || this.isBranch) return [];
    const [fast, slow] = this.sides.map((side) => side.meta).sort((a, b) => a.end_s - b.end_s);
    if (!(fast.end_s > 0)) return [];
    return [`${modeName(fast.mode)} is ${(slow.end_s / fast.end_s).toFixed(2)} times as fast: ${seconds(fast.end_s)}, ${modeName(slow.mode)} ${seconds(slow.end_s)}`];
  }

  open(name) {
    if (this.views[name] === undefined) {
      const holder = byId(`view-${name}`);
      this.views[name] = this.sides.map((side) => {
        const canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `${name}: ${titleOf(side.meta)}`, "aria-describedby": "reading" });
        const caption = element("figcaption", {});
        holder.append(element("figure", {}, caption, canvas));
        const view = new VIEWS[name](this, side, canvas);
        view.caption = caption;
        return view;
      });
    }
    for (const each of Object.keys(VIEWS)) {
      byId(`view-${each}`).hidden = each !== name;
      byId(`tab-${each}`).setAttribute("aria-pressed", String(each === name));
    }
    if (name === "social") for (const view of this.views.social) view.read();
    this.invalidate();
  }

  changed(changes) {
    const { state } = this;
    if ("view" in changes) this.open(state.view);
    this.chooseBasis();
    if (state.isLive) state.at = this.transport.end;
    this.sides.forEach((side, index) => {
      const moment = this.moments[index];
      moment.update(state.basis, state.at);
      this.leads.include(moment.lead);
      const last = side.meta.target ?? side.meta.steps;
      this.captions(index, moment, last);
    });
    this.transport.update();
    this.panel.update("selected" in changes || "call" in changes || "view" in changes || "side" in changes);
    document.body.dataset.basis = state.basis;
    for (const name of Object.keys(VIEWS)) document.body.classList.toggle(`view-${name}`, name === state.view);
    drawLegend(this);
    this.invalidate();
  }

  captions(index, moment, last) {
    const { meta } = this.sides[index];
    const isOnly = this.sides.length === 1;
    const share = last ? moment.floor / last : 0;
    const text = this.state.basis === "time" ? `${titleOf(meta)}: ${Math.floor(100 * share)} % · all agents have done ${count(moment.floor)} of ${plural(last, "step")}` : titleOf(meta);
    for (const views of Object.values(this.views)) {
      const { caption } = views[index];
      caption.hidden = isOnly;
      caption.textContent = caption.title = text;
      caption.style.setProperty("--share", `${100 * share}%`);
    }
  }

  // Draw again at the next frame.
  invalidate() {
    for (const view of this.views[this.state.view] ?? []) view.stage.isDirty = true;
  }

  draw() {
    for (const view of this.views[this.state.view] ?? []) view.stage.draw();
  }

  chunkArrived() {
    this.version += 1;
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.changed({});
      this.panel.update();
    });
  }

  // The functions whose calls take most time first: these have colours of their own. The order is kept once
  // there are enough calls, so that colours do not change any more.
  functionsByUse() {
    if (this.isOrderFinal) return this.functionOrder;
    const uses = new Map();
    let total = 0;
    for (const side of this.sides) {
      for (const name of side.meta.functions) if (!uses.has(name)) uses.set(name, 0);
      for (const calls of side.callsBetween(-Infinity, Infinity)) {
        for (let row = 0; row < calls.count; row += 1) {
          const name = side.meta.functions[calls.function[row]];
          uses.set(name, (uses.get(name) ?? 0) + calls.ended[row] - calls.sent[row]);
        }
        total += calls.count;
      }
    }
    const order = [...uses].sort((a, b) => b[1] - a[1]).map(([name]) => name);
    this.functionOrder = order;
    this.isOrderFinal = total >= CALLS_ENOUGH;
    return order;
  }

  // The category of a function, by its index on a side.
  functionCategory(side, index) {
    const place = this.functionsByUse().indexOf(side.meta.functions[index]);
    return category(place < 0 ? CATEGORIES_TOLD_APART : place);
  }

  // --- what the reader does

  select(side, agent) {
    this.clearSearchQuietly();
    const known = agent ?? null;
    this.state.set({ side, selected: known, call: null, follows: known !== null && this.state.follows });
  }

  follow() {
    this.state.set({ follows: !this.state.follows, view: "town" });
    this.panel.update();
  }

  // Show an agent at a step.
  show(side, agent, step) {
    this.moveToStep(side, agent, step);
    this.state.set({ side, selected: agent, isPlaying: false, isLive: false });
    this.panel.update();
  }

  moveToStep(side, agent, step) {
    if (this.state.basis === "step") {
      this.state.set({ at: step });
      return;
    }
    // in its own time: just after it has come to that step
    const time = step > 0 ? this.sides[side].committed(agent, step - 1) : 0;
    if (time === undefined || !Number.isFinite(time)) return;
    if (this.sides[side].committed(agent, step) <= time) {
      this.setBasis("step"); // the step takes no time: at any time the agent is before or beyond it
      this.state.set({ at: step });
    } else this.state.set({ at: time });
  }

  moveTo(basis, at) {
    const { state } = this;
    if (state.basis !== basis) this.setBasis(basis);
    state.set({ at: Math.max(0, Math.min(at, this.transport.end)), isPlaying: false, isLive: false });
  }

  setBasis(basis) {
    const { state } = this;
    this.awaitsTimes = false;
    if (basis === state.basis) return;
    const side = this.sides[state.side];
    const moment = this.moments[state.side];
    const step = state.selected === null ? moment.floor : moment.steps[state.selected];
    const at = basis === "step" ? Math.min(step, side.meta.steps) : side.timeOfStep(Math.floor(state.at));
    state.set({ basis, at, isPlaying: false });
  }

  // To the moment of the selected agent before or after this one.
  leap(direction) {
    const { state } = this;
    if (state.selected === null) return;
    const side = this.sides[state.side];
    const step = this.moments[state.side].steps[state.selected];
    const near = side.momentsOf(state.selected, Math.max(0, step - side.perChunk), step + side.perChunk).map(([at]) => at);
    const found = direction > 0 ? near.find((at) => at > step) : near.filter((at) => at < step).at(-1);
    if (found !== undefined) this.show(state.side, state.selected, found);
  }

  openCall(side, calls, row) {
    this.state.set({ side, selected: calls.agent[row], call: { calls, row, index: calls.index[row] } });
  }

  clearSearch() {
    this.clearSearchQuietly();
    this.panel.update();
  }

  clearSearchQuietly() {
    byId("search").value = "";
    this.search.clear();
  }

  // Maps of two sides show the same place, their calls the same time, and their steps the same leads.
  linkViews(view) {
    for (const other of this.views[this.state.view] ?? []) {
      if (other === view || !other.stage.width) continue;
      other.stage.offset = [...view.stage.offset];
      other.stage.scale = [...view.stage.scale];
      other.stage.isDirty = true;
      other.isFitted = view.isFitted;
    }
  }

  listen() {
    for (const name of Object.keys(VIEWS)) byId(`tab-${name}`).addEventListener("click", () => this.state.set({ view: name }));
    byId("search-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.search.find(byId("search").value);
    });
    byId("search").addEventListener("input", () => byId("search").value || this.clearSearch());
    byId("fit").addEventListener("click", () => this.refit());
    byId("theme").addEventListener("click", () => this.changeTheme());
    byId("help").addEventListener("click", () => byId("keys").showModal());
    byId("waits").addEventListener("change", (event) => {
      this.showsWaits = event.target.checked;
      this.invalidate();
    });
    matchMedia("print").addEventListener("change", () => this.repaint());
    DARK.addEventListener("change", () => this.repaintNow(chosenTheme()));
    addEventListener("beforeprint", () => this.repaintNow("light")); // paper is white
    addEventListener("afterprint", () => this.repaintNow(chosenTheme()));
    listenToKeys(this, VIEWS);
    this.repaint();
  }

  refit() {
    this.state.set({ follows: false });
    for (const view of this.views[this.state.view]) view.fit();
  }

  repaintNow(name) {
    document.documentElement.dataset.theme = name;
    this.repaint();
    this.draw();
  }

  changeTheme() {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = name;
    remember("theme", name);
    this.repaint();
  }

  repaint() {
    this.theme = theme();
    drawLegend(this);
    this.transport.update();
    this.invalidate();
  }
}

// The reader's choice, or else that of the system.
const DARK = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => remembered("theme", "") || (DARK.matches ? "dark" : "light");

async function start() {
  const source = openSource();
  let page = null;
  const chunks = new Chunks(source, () => page?.chunkArrived());
  const { sides: total } = await chunks.load("sides", asJSON);
  const sides = [];
  for (let index = 0; index < total; index += 1) sides.push(await Side.open(index, chunks));
  page = new Page(source, chunks);
  window.metropolis = page;
  await Promise.all(sides.filter((side) => side.meta.counts.executions).map((side) => chunks.load(side.path("ends", 0), asFloats).catch(() => null)));
  page.start(sides);
}

document.documentElement.dataset.theme = chosenTheme();
start().catch((error) => {
  document.body.dataset.state = "failed";
  byId("failure").hidden = false;
  byId("failure").textContent = error.message;
});
