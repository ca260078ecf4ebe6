// Who met whom, and how a piece of news spread: agents on a circle, or, of a graph with a node for
// each, where that puts them.

import { Stage } from "./canvas.js";
import { leadColour } from "./colours.js";
import { arrow } from "./town.js";
import { layoutOf } from "./network.js";

export class Social {
  constructor(page, side, canvas) {
    this.page = page;
    this.side = side;
    this.meetings = null; // [step, from, to] in order of steps
    this.news = null; // {words, heard: Map(agent -> {step, from, text})}
    const { graph } = side.meta;
    this.places = graph?.nodes === side.agents ? layoutOf(side.agents, graph.edges) : circle(side.agents);
    this.stage = new Stage(canvas, {
      draw: (context) => this.draw(context),
      onTap: (x, y) => page.select(side.index, this.agentAt(x, y)),
      onView: (isFirst) => {
        if (isFirst) this.fit();
      },
    });
  }

  fit() {
    this.stage.fit(-1.25, -1.15, 1.25, 1.15);
  }

  // Reads who spoke to whom, once; again when the run has grown.
  async read() {
    const version = this.page.version;
    if (this.readVersion === version) return;
    this.readVersion = version;
    const meetings = [];
    await this.side.scanMoments(
      (moments) => {
        for (const [step, agent, kind, , extra] of moments) {
          if (kind !== "says") continue;
          for (const other of extra?.to ?? []) meetings.push([step, agent, other]);
        }
      },
      () => this.readVersion !== version,
    );
    this.meetings = meetings;
    this.stage.isDirty = true;
    this.page.panel.update();
  }

  // Follow words through what was said: an agent knows them once it has said or heard them.
  async trace(words) {
    const needle = words.toLocaleLowerCase();
    const heard = new Map();
    this.news = { words, heard };
    if (!needle) {
      this.news = null;
      return;
    }
    const own = this.news;
    await this.side.scanMoments(
      (moments) => {
        for (const [step, agent, kind, text, extra] of moments) {
          if (kind === "does" || !text.toLocaleLowerCase().includes(needle)) continue;
          if (!heard.has(agent)) heard.set(agent, { step, from: null, text });
          if (kind !== "says") continue;
          for (const other of extra?.to ?? []) {
            if (!heard.has(other)) heard.set(other, { step, from: agent, text });
          }
        }
      },
      () => this.news !== own,
    );
    this.stage.isDirty = true;
    this.page.panel.update();
  }

  // The pairs that met until now: "a,b" -> {a, b, count, last}.
  pairs() {
    const { front, steps } = this.page.moments[this.side.index];
    const found = new Map();
    for (const [step, from, to] of this.meetings ?? []) {
      if (step > front) break;
      if (step > steps[from]) continue; // it has not come to that step yet
      const [a, b] = from < to ? [from, to] : [to, from];
      const pair = found.get(`${a},${b}`) ?? { a, b, count: 0, last: 0 };
      pair.count += 1;
      pair.last = step;
      found.set(`${a},${b}`, pair);
    }
    return [...found.values()].sort((one, other) => other.count - one.count);
  }

  // Whether an agent knows the news by now.
  knows(agent) {
    const { steps } = this.page.moments[this.side.index];
    return (this.news?.heard.get(agent)?.step ?? Infinity) <= steps[agent];
  }

  place(agent) {
    return [this.stage.toX(this.places[2 * agent]), this.stage.toY(this.places[2 * agent + 1])];
  }

  agentAt(x, y) {
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      const [ax, ay] = this.place(agent);
      if (Math.hypot(ax - x, ay - y) < 12) return agent;
    }
    return null;
  }

  draw(context) {
    const { page, side } = this;
    const { theme } = page;
    if (this.meetings === null) {
      this.read();
      return;
    }
    const pairs = this.pairs();
    const most = Math.max(1, ...pairs.slice(0, 1).map((pair) => pair.count));
    const selected = page.selectedOn(side);
    context.lineCap = "round";
    for (const { a, b, count } of pairs) {
      const isSelected = [a, b].includes(selected);
      context.strokeStyle = isSelected ? theme.accent : theme.quiet;
      context.globalAlpha = this.news ? 0.12 : isSelected ? 0.95 : 0.2 + 0.5 * (count / most);
      context.lineWidth = 1 + 6 * Math.sqrt(count / most);
      context.beginPath();
      context.moveTo(...this.place(a));
      context.lineTo(...this.place(b));
      context.stroke();
    }
    context.globalAlpha = 1;
    if (this.news) this.drawNews(context, theme);
    const radius = Math.max(3, Math.min(9, 220 / side.agents + 3));
    for (let agent = 0; agent < side.agents; agent += 1) {
      const [x, y] = this.place(agent);
      const known = this.news?.heard.get(agent);
      const knows = this.knows(agent);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = this.news ? (knows ? leadColour(known.step / Math.max(1, side.meta.steps)) : theme.panel) : theme.accent;
      context.fill();
      context.strokeStyle = selected === agent ? theme.alarm : theme.ink;
      context.lineWidth = 1.2;
      context.stroke();
      if (side.agents > 80) continue;
      const outwards = Math.atan2(this.places[2 * agent + 1], this.places[2 * agent]);
      context.font = `${knows ? 600 : 400} 12px system-ui, sans-serif`;
      context.fillStyle = theme.ink;
      context.textAlign = Math.cos(outwards) >= 0 ? "left" : "right";
      context.textBaseline = "middle";
      context.fillText(side.meta.agents[agent], x + (radius + 6) * Math.cos(outwards), y + (radius + 6) * Math.sin(outwards));
    }
  }

  drawNews(context, theme) {
    context.strokeStyle = context.fillStyle = theme.accent;
    context.lineWidth = 2;
    for (const [agent, { from }] of this.news.heard) {
      if (from !== null && this.knows(agent)) arrow(context, this.place(from), this.place(agent), 11);
    }
  }
}

function circle(agents) {
  const places = new Float32Array(2 * agents);
  for (let agent = 0; agent < agents; agent += 1) {
    const angle = (2 * Math.PI * agent) / agents - Math.PI / 2;
    places[2 * agent] = Math.cos(angle);
    places[2 * agent + 1] = Math.sin(angle);
  }
  return places;
}
