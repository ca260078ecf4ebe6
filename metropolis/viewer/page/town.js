// The map: walls and places, agents at their own steps, their ways, what they say, who waits for whom.

import { Stage, Taken, arrow, fitted, outlined, rounded } from "./canvas.js";
import { leadColour, leadTextColour } from "./colours.js";
import { Fold } from "./fold.js";
import { labelsOf } from "./format.js";
import { pictureOf } from "./map_picture.js";
import { layoutOf } from "./network.js";
import { FINISHED, WAITING } from "./moment.js";
import { drawSpeech } from "./speech.js";

const WAY_STEPS = 30;
const NAMES_FROM = 9; // pixels of a tile
const PLACES_FROM = 4;
const OBJECTS_FROM = 22;

export class Town {
  constructor(page, side, canvas) {
    this.page = page;
    this.side = side;
    this.hovered = null;
    const { map, graph } = side.meta;
    this.hops = graph ? layoutOf(graph.nodes, graph.edges) : null;
    this.crowd = new Int32Array(side.agents);
    this.labels = labelsOf(side.meta.agents);
    this.picture = null;
    this.map = map;
    this.fold = map ? new Fold(map) : null;
    this.stage = new Stage(canvas, {
      draw: (context) => this.draw(context),
      onTap: (x, y) => page.select(side.index, this.agentAt(x, y)),
      onHover: (x, y) => this.hover(this.agentAt(x, y)),
      onLeave: () => this.hover(null),
      onView: (isFirst, change) => this.viewed(isFirst, change),
    });
  }

  fit() {
    this.isFitted = true;
    const { map } = this;
    if (map) {
      this.stage.fit(0, 0, this.fold.width, this.fold.height);
      return;
    }
    if (this.hops) {
      this.stage.fit(-1.1, -1.1, 1.1, 1.1);
      return;
    }
    this.box = [Infinity, Infinity, -Infinity, -Infinity];
    this.widen();
  }

  // Show as much of a plane as agents have been in since `fit`, as far as their positions have come.
  widen() {
    const { positions, isKnown } = this.page.moments[this.side.index];
    let [x0, y0, x1, y1] = this.box;
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      if (!isKnown[agent]) continue;
      const [x, y] = [positions[2 * agent], positions[2 * agent + 1]];
      [x0, y0] = [Math.min(x0, x), Math.min(y0, y)];
      [x1, y1] = [Math.max(x1, x), Math.max(y1, y)];
    }
    const box = [x0, y0, x1, y1];
    if (x0 > x1 || box.every((edge, at) => edge === this.box[at])) return;
    this.box = box;
    this.stage.fit(x0 - 4, y0 - 4, x1 + 5, y1 + 5);
  }

  viewed(isFirst, change) {
    if (isFirst || (change && this.isFitted)) {
      this.fit();
    } else if (change) {
      this.stage.offset[0] += change[0] / 2; // keep the middle
      this.stage.offset[1] += change[1] / 2;
    }
    if (isFirst || change) return;
    this.isFitted = false;
    this.page.linkViews(this);
  }

  hover(agent) {
    if (agent === this.hovered) return;
    this.hovered = agent;
    this.stage.canvas.style.cursor = agent === null ? "" : "pointer";
    this.stage.isDirty = true;
  }

  // The place of an agent on the canvas.
  place(agent) {
    const { stage } = this;
    const { positions } = this.page.moments[this.side.index];
    if (this.hops) {
      const [x, y] = this.nodePlace(positions[2 * agent]);
      const turn = 2.4 * this.crowd[agent]; // agents at one node stand around it
      const away = this.crowd[agent] ? 1.6 * this.radius * Math.sqrt(this.crowd[agent]) : 0;
      return [x + away * Math.cos(turn), y + away * Math.sin(turn)];
    }
    return this.placeOf(positions[2 * agent], positions[2 * agent + 1]);
  }

  nodePlace(node) {
    return [this.stage.toX(this.hops[2 * node]), this.stage.toY(this.hops[2 * node + 1])];
  }

  // How many agents before this one are at the same node.
  countCrowds() {
    const { positions } = this.page.moments[this.side.index];
    const seen = new Map();
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      const node = positions[2 * agent];
      this.crowd[agent] = seen.get(node) ?? 0;
      seen.set(node, this.crowd[agent] + 1);
    }
  }

  // The middle of a tile on the canvas.
  placeOf(x, y) {
    const { fold, stage } = this;
    if (!fold) return [stage.toX(x + 0.5), stage.toY(y + 0.5)];
    const row = fold.rowOf(x);
    return [stage.toX(fold.x(x, row) + 0.5), stage.toY(fold.y(y, row) + 0.5)];
  }

  get radius() {
    const most = this.side.agents > 300 ? 7 : this.stage.scale[0] > 24 ? 14 : 11;
    if (this.hops) return Math.max(3, Math.min(most, 90 / Math.sqrt(this.side.agents)));
    return Math.max(this.side.agents > 300 ? 2.5 : 5, Math.min(most, 0.62 * this.stage.scale[0]));
  }

  agentAt(x, y) {
    let nearest = null;
    let distance = Math.max(10, this.radius + 3);
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      const [ax, ay] = this.place(agent);
      const away = Math.hypot(ax - x, ay - y);
      if (away < distance) [nearest, distance] = [agent, away];
    }
    return nearest;
  }

  // --- drawing

  draw(context) {
    const { page, side, stage } = this;
    const theme = page.theme;
    const moment = page.moments[side.index];
    this.names = new Taken();
    if (this.isFitted && !this.map && !this.hops) this.widen();
    if (this.hops) this.countCrowds();
    const selected = page.selectedOn(side);
    if (page.state.follows && selected !== null) {
      const [x, y] = this.place(selected);
      stage.offset[0] += stage.width / 2 - x;
      stage.offset[1] += stage.height / 2 - y;
    }
    this.drawMap(context, theme);
    if (this.hops) this.drawAcquaintances(context, theme);
    this.drawWays(context, moment);
    this.drawWaits(context, theme, moment);
    const order = [...moment.steps.keys()].sort((a, b) => moment.steps[a] - moment.steps[b]);
    for (const agent of order) if (moment.isKnown[agent]) this.drawAgent(context, theme, moment, agent);
    if (stage.scale[0] >= 1.6 * NAMES_FROM && !this.hops) {
      for (const agent of order) if (moment.isKnown[agent] && this.isInside(...this.place(agent))) this.drawName(context, theme, agent, false);
    }
    this.label = null;
    if (selected !== null) this.drawSelected(context, theme, selected);
    this.covered = drawSpeech(context, theme, moment, this);
    if (this.hovered !== null) this.drawName(context, theme, this.hovered, true);
  }

  drawMap(context, theme) {
    const { stage, map } = this;
    if (!map) return;
    if (this.picture === null || this.pictureTheme !== theme) {
      this.picture = pictureOf(map, theme);
      this.pictureTheme = theme;
    }
    const [scale] = stage.scale;
    context.imageSmoothingEnabled = scale < 2;
    this.fold.starts.forEach((start, row) => {
      const width = this.fold.widthOf(row);
      const [x, y] = [stage.toX(0), stage.toY(this.fold.y(0, row))];
      context.drawImage(this.picture, start, 0, width, map.height, x, y, width * scale, map.height * scale);
    });
    if (scale < PLACES_FROM * 0.75) return;
    context.textAlign = "center";
    context.textBaseline = "middle";
    if (scale >= OBJECTS_FROM) {
      context.font = "10px system-ui, sans-serif";
      context.fillStyle = theme.quiet;
      for (const { name, x0, y0, x1, y1 } of map.objects ?? []) {
        const [cx, cy] = this.placeOf((x0 + x1) / 2, (y0 + y1) / 2);
        if (this.isInside(cx, cy)) outlined(context, fitted(context, name, (x1 - x0 + 2) * scale), cx, cy, theme.area);
      }
    }
    this.drawPlaces(context, theme, scale);
  }

  // Names of buildings; closer, those of their rooms.
  drawPlaces(context, theme, scale) {
    const areas = this.map.areas ?? [];
    const showsRooms = scale >= NAMES_FROM;
    const buildings = new Map();
    for (const area of areas) {
      const [building, room] = area.name.includes(": ") ? area.name.split(/: (.*)/su) : [area.name, ""];
      const known = buildings.get(building);
      const box = known ?? { name: building, x0: Infinity, y0: Infinity, x1: -Infinity, y1: -Infinity };
      box.x0 = Math.min(box.x0, area.x0);
      box.y0 = Math.min(box.y0, area.y0);
      box.x1 = Math.max(box.x1, area.x1);
      box.y1 = Math.max(box.y1, area.y1);
      buildings.set(building, box);
      if (showsRooms && room) {
        context.font = "11px system-ui, sans-serif";
        context.fillStyle = theme.quiet;
        const [x, y] = this.placeOf((area.x0 + area.x1) / 2, (area.y0 + area.y1) / 2);
        if (this.isInside(x, y)) outlined(context, fitted(context, room, (area.x1 - area.x0 + 3) * scale), x, y, theme.area);
      }
    }
    context.font = "600 11px system-ui, sans-serif";
    context.fillStyle = theme.quiet;
    // those that have room first; the names of small buildings may reach beyond these
    const taken = new Taken();
    for (const box of [...buildings.values()].sort((a, b) => b.x1 - b.x0 - (a.x1 - a.x0))) {
      const [x, wall] = this.placeOf((box.x0 + box.x1) / 2, box.y0 - 1.5);
      const y = wall - 8;
      let { name } = box;
      let { width } = context.measureText(name);
      if (!taken.isFree(x - width / 2, y - 7, width, 14)) {
        width = (box.x1 - box.x0 + 3) * scale;
        name = fitted(context, name, width);
        if (!taken.isFree(x - width / 2, y - 7, width, 14)) continue;
      }
      taken.take(x - width / 2, y - 7, width, 14);
      if (this.isInside(x, y)) outlined(context, name, x, y, theme.floor);
    }
  }

  isInside(x, y) {
    return x > -60 && y > -30 && x < this.stage.width + 60 && y < this.stage.height + 30;
  }

  drawAcquaintances(context, theme) {
    const { edges } = this.side.meta.graph;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    context.globalAlpha = Math.max(0.15, Math.min(0.9, 600 / edges.length));
    context.beginPath();
    for (const [a, b] of edges) {
      context.moveTo(...this.nodePlace(a));
      context.lineTo(...this.nodePlace(b));
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  drawWays(context, moment) {
    const { page, side, stage } = this;
    if (this.hops) return;
    const all = side.agents <= 60;
    const selected = page.selectedOn(side);
    const at = [0, 0];
    context.lineWidth = Math.max(1.2, Math.min(3, 0.16 * stage.scale[0]));
    context.lineJoin = "round";
    for (let agent = 0; agent < side.agents; agent += 1) {
      const isSelected = selected === agent;
      if (!all && !isSelected) continue;
      const last = moment.steps[agent];
      context.globalAlpha = isSelected ? 0.9 : 0.35;
      context.strokeStyle = isSelected ? page.theme.accent : this.colour(moment, agent);
      context.beginPath();
      let row = null;
      for (let step = Math.max(0, last - WAY_STEPS); step <= last; step += 1) {
        if (!side.position(agent, step, at)) continue;
        const [before, point] = [row, this.placeOf(at[0], at[1])];
        row = this.fold?.rowOf(at[0]) ?? 0;
        if (before === row) context.lineTo(...point);
        else context.moveTo(...point);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  drawWaits(context, theme, moment) {
    if (moment.basis !== "time" || !this.page.showsWaits) return;
    context.strokeStyle = context.fillStyle = theme.alarm;
    context.lineWidth = 1.2;
    const waiting = moment.blockedBy.reduce((sum, blocker) => sum + (blocker >= 0), 0);
    context.globalAlpha = Math.max(0.12, Math.min(0.65, 30 / waiting));
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      const blocker = moment.blockedBy[agent];
      if (blocker < 0) continue;
      arrow(context, this.place(agent), this.place(blocker), this.radius + 2);
    }
    context.globalAlpha = 1;
  }

  colour(moment, agent) {
    if (moment.basis === "time") {
      return leadColour(this.page.leads.share(moment.steps[agent] - moment.floor));
    }
    return this.side.doing(agent, moment.steps[agent])?.asleep ? this.page.theme.quiet : this.page.theme.accent;
  }

  drawAgent(context, theme, moment, agent) {
    const [x, y] = this.place(agent);
    if (!this.isInside(x, y)) return;
    const { radius } = this;
    const colour = this.colour(moment, agent);
    const waits = moment.status[agent] === WAITING;
    const isOver = moment.status[agent] === FINISHED;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fillStyle = isOver ? theme.panel : colour;
    context.globalAlpha = isOver ? 0.6 : 1;
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = theme.ink;
    context.globalAlpha *= 0.6;
    context.stroke();
    context.globalAlpha = 1;
    if (waits) {
      context.beginPath();
      context.arc(x, y, radius - Math.max(1.9, 0.22 * radius), 0, 2 * Math.PI);
      context.fillStyle = theme.panel;
      context.fill();
    }
    if (this.page.differs(this.side, agent, moment)) {
      context.beginPath();
      context.arc(x, y, radius + 3, 0, 2 * Math.PI);
      context.strokeStyle = theme.alarm;
      context.lineWidth = 2;
      context.stroke();
    }
    if (radius >= 8) {
      const onColour = moment.basis === "time" ? leadTextColour(this.page.leads.share(moment.steps[agent] - moment.floor)) : theme.panel;
      context.fillStyle = waits || isOver ? theme.ink : onColour;
      const label = this.labels[agent];
      context.font = `600 ${Math.round(radius * (waits ? 0.78 : 0.9) * Math.min(1, 3 / label.length))}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(label, x, y + 0.5);
    }
    if (this.stage.scale[0] >= NAMES_FROM && !this.hops) {
      const doing = this.side.doing(agent, moment.steps[agent]);
      if (doing?.emoji) {
        context.font = `${Math.round(radius * 1.5)}px system-ui, sans-serif`;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillStyle = theme.ink;
        context.fillText(doing.emoji, x + radius * 1.35, y - radius * 1.35);
      }
    }
  }

  drawName(context, theme, agent, isProminent) {
    const moment = this.page.moments[this.side.index];
    const [x, y] = this.place(agent);
    const name = this.side.meta.agents[agent];
    const label = isProminent && this.stage.width > 480 ? this.side.doing(agent, moment.steps[agent])?.label : null;
    const lines = label ? [name, label] : [name];
    context.font = "600 12px system-ui, sans-serif";
    const width = Math.min(260, Math.max(...lines.map((line) => context.measureText(line).width)));
    context.textAlign = "center";
    context.textBaseline = "top";
    let top = y + this.radius + 8;
    if (!isProminent) {
      // agents at one place: their names stand below each other
      while (!this.names.isFree(x - width / 2, top, width, 14)) top += 15;
      this.names.take(x - width / 2, top, width, 14);
      context.fillStyle = theme.ink;
      outlined(context, fitted(context, name, width), x, top, theme.floor);
      return;
    }
    const middle = Math.min(Math.max(x, width / 2 + 10), this.stage.width - width / 2 - 10);
    context.fillStyle = theme.bubble;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    this.label = [middle - width / 2 - 7, top - 4, width + 14, 17 * lines.length + 6]; // speech leaves it free
    rounded(context, ...this.label, 6);
    context.fill();
    context.stroke();
    lines.forEach((line, row) => {
      context.font = `${row ? 400 : 600} 12px system-ui, sans-serif`;
      context.fillStyle = row ? theme.quiet : theme.ink;
      context.fillText(fitted(context, line, 260), middle, top + 17 * row);
    });
  }

  drawSelected(context, theme, agent) {
    const [x, y] = this.place(agent);
    context.beginPath();
    context.arc(x, y, this.radius + 4, 0, 2 * Math.PI);
    context.strokeStyle = theme.accent;
    context.lineWidth = 2.5;
    context.stroke();
    this.drawName(context, theme, agent, true);
  }
}
