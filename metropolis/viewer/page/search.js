// Search in names, speech, thoughts and actions of all sides that the page shows.

import { element, onlyFirst } from "./elements.js";
import { plural, titleOf } from "./format.js";

const SHOWN_MAX = 300;
const HITS_MAX = 6000; // of a side

export class Search {
  constructor(page) {
    this.page = page;
    this.clear();
  }

  clear() {
    this.query = "";
    this.hits = null; // lists of {side, moment}: the same moment of one side or of both
    this.isRunning = false;
  }

  async find(query) {
    const { page } = this;
    this.clear();
    this.query = query.trim();
    this.needle = this.query.toLocaleLowerCase();
    if (!this.query) {
      page.panel.update();
      return;
    }
    const hits = (this.hits = []);
    const isStale = () => this.hits !== hits;
    this.isRunning = true;
    this.isCut = false;
    this.error = null;
    page.state.set({ call: null });
    try {
      for (const side of page.sides) await this.scan(side, hits, isStale);
    } catch (error) {
      if (!isStale()) this.error = error.message;
    }
    if (isStale()) return;
    hits.sort((a, b) => a[0].moment[0] - b[0].moment[0]);
    this.isRunning = false;
    page.panel.update();
  }

  async scan(side, hits, isStale) {
    const names = side.meta.agents;
    const known = new Map(); // what a moment shows -> the hits of other sides that show the same
    const content = (of, [step, agent, kind, text, extra]) => JSON.stringify([step, of[agent], kind, text, extra?.to?.map((other) => of[other])]);
    for (const hit of hits) {
      const key = content(hit[0].side.meta.agents, hit[0].moment);
      known.set(key, [...(known.get(key) ?? []), hit]);
    }
    let found = 0;
    await side.scanMoments(
      (moments) => {
        for (const moment of moments) {
          if (!this.matches(moment[3]) && !this.matches(names[moment[1]])) continue;
          found += 1;
          const same = known.get(content(names, moment))?.shift();
          if (same === undefined) hits.push([{ side, moment }]);
          else same.push({ side, moment });
        }
      },
      () => {
        if (found > HITS_MAX) this.isCut = true;
        return isStale() || found > HITS_MAX;
      },
    );
  }

  matches(text) {
    return text.toLocaleLowerCase().includes(this.needle);
  }

  // --- in the panel

  parts() {
    const { hits, page } = this;
    const most = this.isCut ? "more than " : "";
    const found = this.isRunning ? "searching…" : (this.error ?? `${most}${plural(hits.length, "moment")}`);
    return [
      page.panel.heading(`“${this.query}”`, found, () => page.clearSearch()),
      ...this.namesFound(),
      element("ol", { class: "moments" }, ...hits.slice(0, SHOWN_MAX).map((hit) => this.row(hit))),
      onlyFirst(hits, SHOWN_MAX),
    ];
  }

  // Agents of the selected side, and those that are only on the other one.
  namesFound() {
    const { page } = this;
    const [first, ...others] = [...page.sides].sort((a, b) => (b.index === page.state.side) - (a.index === page.state.side));
    const found = (side) => [...side.meta.agents.keys()].filter((agent) => this.matches(side.meta.agents[agent]));
    const lists = [[first, found(first)], ...others.map((side) => [side, found(side).filter((agent) => page.twin(side, agent, first) === null)])];
    return lists.filter(([, agents]) => agents.length).map(([side, agents]) => element("p", { class: "status" }, ...page.panel.names(side, agents)));
  }

  // A moment; of one side only, with the name of that side.
  row(hit) {
    const { page } = this;
    const { side, moment } = hit.find((each) => each.side.index === page.state.side) ?? hit[0];
    const isOfAll = hit.length === page.sides.length;
    const whose = isOfAll ? null : element("span", { class: "quiet" }, `${titleOf(side.meta)}: `);
    return page.panel.momentRow(side, moment, false, element("span", {}, whose ?? "", element("b", {}, `${side.meta.agents[moment[1]]} `)));
  }
}
