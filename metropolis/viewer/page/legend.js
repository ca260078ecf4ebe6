// The legend below the stage, of the view that is open.

import { CATEGORIES_TOLD_APART, category, leadColour } from "./colours.js";
import { byId, element } from "./elements.js";
import { count, plural } from "./format.js";

export function drawLegend(page) {
  const { view, basis } = page.state;
  const functions = page.functionsByUse();
  const named = functions.slice(0, CATEGORIES_TOLD_APART);
  const key = [view, basis, page.leads.most, page.theme.ink, functions.length, ...named].join();
  if (key === page.legendKey) return;
  page.legendKey = key;
  byId("legend").replaceChildren(...itemsOf(page, view, basis, named, functions.slice(CATEGORIES_TOLD_APART)));
}

function itemsOf(page, view, basis, named, others) {
  if (view === "calls") {
    const items = named.map((name, index) => item(`var(--${category(index)})`, name, "square"));
    if (others.length) items.push(item(`var(--${category(CATEGORIES_TOLD_APART)})`, others.length > 1 ? plural(others.length, "other function") : others[0], "square"));
    return items;
  }
  if (view === "social") return [text("a wider line: they spoke more often"), element("span", { class: "item" }, "news: told early", scale(), "late")];
  if (basis === "time") {
    return [
      element("span", { class: "item" }, "at the floor", scale(), `${count(page.leads.most)} steps ahead`),
      item("var(--ink)", "runs"),
      item("var(--ink)", "waits", "hollow"),
      item("var(--wall)", "has finished", "hollow thin"),
      item("var(--alarm)", "waits for", "arrow"),
    ];
  }
  if (view === "steps") return [text("Scrubbing by step shows all agents at the same step; by time, each is at its own.")];
  return [item("var(--accent)", "awake"), item("var(--quiet)", "asleep"), ...(page.isBranch ? [item("var(--alarm)", "differs", "hollow")] : [])];
}

const text = (words) => element("span", { class: "item" }, words);

function item(colour, words, kind = "") {
  const mark = element("span", { class: `swatch ${kind}` });
  mark.style.setProperty("--colour", colour);
  return element("span", { class: "item", title: words }, mark, element("span", { class: "words" }, words));
}

function scale() {
  const bar = element("span", { class: "scale" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 11 }, (_, at) => leadColour(at / 10)).join(", ")})`;
  return bar;
}
