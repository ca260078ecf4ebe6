// How a run and its branch differ: by where agents are and what they do, say and think, step by step.

import { element, onlyFirst } from "./elements.js";
import { count, plural, titleOf, worldTime } from "./format.js";

const SHOWN_MAX = 300;

// Fills `page.differences`: {first, list: [{step, agent, here, there}], isComplete}, `agent`: of the
// first side. Called again when a side has grown.
export async function compare(page) {
  if (page.isComparing) {
    page.isCompared = false; // again after this time
    return;
  }
  page.isComparing = true;
  page.differences ??= { first: null, list: [], isComplete: false };
  do {
    page.isCompared = true;
    page.differences = await differencesOf(...page.sides, page);
    page.panel.update();
    page.invalidate();
  } while (!page.isCompared);
  page.isComparing = false;
}

async function differencesOf(one, other, page) {
  const steps = Math.min(one.meta.steps, other.meta.steps);
  const byStep = new Map(); // "step agent" -> {here, there}
  const add = (step, agent, field, text) => {
    const key = `${step} ${agent}`;
    const each = byStep.get(key) ?? { step, agent, here: "", there: "" };
    each[field] += `${each[field] ? " · " : ""}${text}`;
    byStep.set(key, each);
  };
  const read = async (side, field) => {
    await side.scanMoments(
      (moments) => {
        for (const [step, agent, kind, text] of moments) {
          const own = page.twin(side, agent, one);
          if (step < steps && own !== null) add(step, own, field, `${kind === "does" ? "" : `${kind} `}${text}`);
        }
      },
      () => false,
    );
  };
  await read(one, "here");
  await read(other, "there");
  const list = [...byStep.values()].filter(({ here, there }) => here !== there);
  for (const { step, agent, here, there } of await placesApart(one, other, page, steps)) {
    const known = byStep.get(`${step} ${agent}`);
    if (known === undefined || known.here === known.there) list.push({ step, agent, here, there });
  }
  list.sort((a, b) => a.step - b.step || a.agent - b.agent);
  return { first: list.length ? list[0].step : null, list, isComplete: true };
}

// For each agent the first step at the beginning of which it is elsewhere; `steps`: after the last one.
async function placesApart(one, other, page, steps) {
  const found = [];
  const together = new Map();
  for (let agent = 0; agent < one.agents; agent += 1) {
    const twin = page.twin(one, agent, other);
    if (twin !== null) together.set(agent, twin);
  }
  const text = (row, agent) => `is at (${row[2 * agent]}, ${row[2 * agent + 1]})`;
  for (let step = 0; step <= steps && together.size; step += 1) {
    const here = await one.positionsAt(step);
    const there = await other.positionsAt(step);
    for (const [agent, twin] of together) {
      if (here[2 * agent] === there[2 * twin] && here[2 * agent + 1] === there[2 * twin + 1]) continue;
      found.push({ step, agent, here: text(here, agent), there: text(there, twin) });
      together.delete(agent);
    }
  }
  return found;
}

const at = [new Float32Array(2), new Float32Array(2)];

// Whether an agent of a side is elsewhere at the moment than on the other side, or does another thing.
export function differs(page, side, agent, moment) {
  const other = page.sides[1 - side.index];
  const twin = page.twin(side, agent, other);
  const step = moment.steps[agent];
  const steps = Math.min(side.meta.steps, other.meta.steps);
  if (twin === null || step > steps) return false;
  if (!side.position(agent, step, at[0]) || !other.position(twin, step, at[1])) return false;
  if (at[0][0] !== at[1][0] || at[0][1] !== at[1][1]) return true;
  if (step === steps) return false; // what the agents of the shorter run do in this step is not known
  return (side.doing(agent, step)?.label ?? "") !== (other.doing(twin, step)?.label ?? "");
}

// The panel's list of differences.
export function differenceParts(page, panel) {
  const { first, list, isComplete } = page.differences;
  const [one] = page.sides;
  const title = first !== null ? `They part at step ${count(first)}` : isComplete ? "No difference" : "Comparing…";
  const subtitle = first === null ? null : `${worldTime(one, first)} · ${plural(list.length, "difference")}`;
  return [
    panel.heading(title, subtitle, null),
    element("ol", { class: "moments" }, ...list.slice(0, SHOWN_MAX).map((difference) => differenceRow(page, difference))),
    onlyFirst(list, SHOWN_MAX),
  ];
}

function differenceRow(page, { step, agent, here, there }) {
  const [one, other] = page.sides;
  const half = (side, text) => element("span", { class: "half" }, element("span", { class: "quiet" }, `${titleOf(side.meta)}: `), text || "—");
  const name = element("b", {}, one.meta.agents[agent]);
  const row = element("button", { class: "row", onclick: () => page.show(0, agent, step) }, element("span", { class: "when" }, worldTime(one, step)), element("span", { class: "grow" }, name, half(one, here), half(other, there)));
  return element("li", { class: "difference" }, row);
}
