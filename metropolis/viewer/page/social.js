// Who met whom, and how a piece of news spread: agents on a circle, or, of a graph with a node for
// each, where that puts them.

import { Stage, Taken, arrow, fitted, outlined } from "./canvas.js";
import { leadColour } from "./colours.js";
import { layoutOf } from "./network.js";

export class Social {
  constructor(page, side, canvas) {
    this.page = page;
    this.side = side;
    this.meetings = null; // [step, from, to] in order of steps
    this.news = null; // {words, heard: Map(agent -> {step, from, text})}
    const { graph } = side.meta;
    this.isCircle = graph?.nodes !== side.agents;
    this.places = this.isCircle ? circle(side.agents) : layoutOf(side.agents, graph.edges);
    this.stage = new Stage(canvas, {
      draw: (context) => this.draw(context),
      onTap: (x, y) => page.select(side.index, this.agentAt(x, y)),
      onView: (isFirst, change) => {
        if (isFirst || (change && this.isFitted)) this.fit();
        this.isFitted = isFirst || Boolean(change && this.isFitted);
      },
    });
  }

  // A circle becomes as wide as the names beside it let it.
  fit() {
    const { stage } = this;
    stage.fit(-1.25, -1.15, 1.25, 1.15);
    if (!this.isCircle) return;
    const [across, down] = [stage.width / 2 - this.nameWidth - 20, stage.height / 2 - 32];
    stage.scale = [Math.min(Math.max(30, across), 2 * Math.max(30, down)), Math.max(30, Math.min(down, 2 * across))];
  }

  // Pixels that names may have beside the circle.
  get nameWidth() {
    return Math.min(150, 0.27 * this.stage.width);
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
    const isSelected = (...agents) => agents.includes(selected);
    for (const { a, b, count } of pairs) {
      context.strokeStyle = isSelected(a, b) ? theme.accent : theme.quiet;
      context.globalAlpha = this.news ? 0.12 : isSelected(a, b) ? 0.95 : 0.2 + 0.5 * (count / most);
      context.lineWidth = 1 + 6 * Math.sqrt(count / most);
      context.beginPath();
      context.moveTo(...this.place(a));
      context.lineTo(...this.place(b));
      context.stroke();
    }
    context.globalAlpha = 1;
    if (this.news) this.drawNews(context, theme);
    const between = (2 * Math.PI * Math.min(...this.stage.scale)) / side.agents;
    const radius = Math.max(1.5, Math.min(9, 220 / side.agents + 3, this.isCircle ? 0.42 * between : 9));
    const knows = (agent) => this.knows(agent);
    for (let agent = 0; agent < side.agents; agent += 1) {
      const [x, y] = this.place(agent);
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fillStyle = this.news ? (knows(agent) ? leadColour(this.news.heard.get(agent).step / Math.max(1, side.meta.steps)) : theme.panel) : theme.accent;
      context.fill();
      context.strokeStyle = isSelected(agent) ? theme.alarm : theme.ink;
      context.lineWidth = 1.2;
      context.stroke();
    }
    if (side.agents <= 80) this.drawNames(context, theme, radius, (agent) => isSelected(agent) || knows(agent));
  }

  // Of names that overlap, the first is shown, those of `isFirst` before others.
  drawNames(context, theme, radius, isFirst) {
    const { agents } = this.side.meta;
    const taken = new Taken();
    const order = [...agents.keys()].sort((a, b) => isFirst(b) - isFirst(a) || a - b);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = theme.ink;
    for (const agent of order) {
      const [x, y] = this.place(agent);
      const outwards = Math.atan2(this.places[2 * agent + 1], this.places[2 * agent]);
      const [dx, dy] = [Math.cos(outwards), Math.sin(outwards)];
      context.font = `${isFirst(agent) ? 600 : 400} 12px system-ui, sans-serif`;
      const name = fitted(context, agents[agent], this.isCircle ? this.nameWidth : 160);
      const { width } = context.measureText(name);
      const isUpright = Math.abs(dx) < 0.12; // above and below the circle: in the middle
      const [left, middle] = [x + (radius + 6) * dx - (isUpright ? width / 2 : dx < 0 ? width : 0), y + (radius + 8) * dy];
      if (!taken.isFree(left, middle - 6, width, 12)) continue;
      taken.take(left, middle - 6, width, 12);
      outlined(context, name, left, middle, theme.paper);
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
