// Who is how far ahead of the floor, who runs together, and who waits for whom: a row for each agent.

import { Stage, fitted, ticks } from "./canvas.js";
import { leadColour } from "./colours.js";
import { count } from "./format.js";
import { FINISHED, WAITING } from "./moment.js";

const TOP = 44;
const RIGHT = 24;
const ROW_MAX = 26;

export class Steps {
  constructor(page, side, canvas) {
    this.page = page;
    this.side = side;
    this.stage = new Stage(canvas, {
      draw: (context) => this.draw(context),
      onTap: (x, y) => page.select(side.index, this.agentAt(y)),
      moves: false,
    });
  }

  fit() {}

  get left() {
    return Math.min(150, 0.32 * this.stage.width);
  }

  // Agents by lead, coupled ones together.
  order() {
    const moment = this.page.moments[this.side.index];
    const key = (agent) => (moment.cluster[agent] < 0 ? agent : moment.cluster[agent]);
    return [...moment.steps.keys()].sort(
      (a, b) => moment.steps[b] - moment.steps[a] || key(a) - key(b) || a - b,
    );
  }

  get row() {
    const free = this.stage.height - TOP - 16;
    return Math.max(1e-3, Math.min(ROW_MAX, free / this.side.agents));
  }

  agentAt(y) {
    const at = Math.floor((y - TOP) / this.row);
    return this.order()[at] ?? null;
  }

  draw(context) {
    const { page, side, stage, row } = this;
    const { theme } = page;
    const moment = page.moments[side.index];
    const order = this.order();
    const rowOf = new Int32Array(side.agents);
    order.forEach((agent, at) => (rowOf[agent] = at));
    const most = page.leads.most;
    const selected = page.selectedOn(side);
    const { left } = this;
    const x = (step) => left + ((step - moment.floor) / most) * (stage.width - left - RIGHT);
    const y = (agent) => TOP + (rowOf[agent] + 0.5) * row;
    this.drawAxis(context, theme, moment, x, left);
    const bar = Math.max(1, Math.min(12, row * 0.6));
    context.textBaseline = "middle";
    for (const agent of order) {
      const lead = moment.steps[agent] - moment.floor;
      const waits = moment.status[agent] === WAITING;
      const isOver = moment.status[agent] === FINISHED;
      context.fillStyle = context.strokeStyle = leadColour(page.leads.share(lead));
      context.globalAlpha = waits || isOver ? 0.3 : 0.85;
      context.fillRect(x(moment.floor), y(agent) - bar / 2, Math.max(3, x(moment.steps[agent]) - left), bar);
      context.globalAlpha = 1;
      if (row >= 5) {
        context.beginPath();
        context.arc(x(moment.steps[agent]), y(agent), Math.min(6, row * 0.36), 0, 2 * Math.PI);
        context.fillStyle = isOver ? theme.panel : context.fillStyle;
        context.fill();
        context.lineWidth = 1;
        context.strokeStyle = isOver ? theme.wall : theme.ink;
        context.stroke();
        if (waits) {
          context.beginPath();
          context.arc(x(moment.steps[agent]), y(agent), Math.min(6, row * 0.36) * 0.6, 0, 2 * Math.PI);
          context.fillStyle = theme.panel;
          context.fill();
        }
      }
      const isSelected = selected === agent;
      if (row >= 11 || isSelected) {
        context.font = `${isSelected ? 700 : 400} 12px system-ui, sans-serif`;
        context.fillStyle = isSelected ? theme.accent : theme.ink;
        context.textAlign = "right";
        context.fillText(fitted(context, side.meta.agents[agent], left - 16), left - 10, y(agent));
      }
    }
    this.drawClusters(context, theme, moment, order, x, y);
    this.drawWaits(context, theme, moment, x, y);
  }

  drawAxis(context, theme, moment, x, left) {
    const { stage } = this;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.strokeStyle = theme.line;
    context.fillStyle = theme.quiet;
    context.lineWidth = 1;
    context.textAlign = "center";
    const end = moment.floor + this.page.leads.most;
    for (const step of ticks(moment.floor, end, Math.max(2, stage.width / 130)).found) {
      context.beginPath();
      context.moveTo(x(step), TOP - 6);
      context.lineTo(x(step), stage.height - 10);
      context.stroke();
      if (Math.abs(x(step) - left) > 56) context.fillText(count(Math.round(step)), x(step), TOP - 12);
    }
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(left, TOP - 6);
    context.lineTo(left, stage.height - 10);
    context.stroke();
    context.fillStyle = theme.ink;
    context.font = "600 11px system-ui, sans-serif";
    context.fillText(`floor ${count(moment.floor)}`, left, TOP - 12);
    context.textAlign = "right";
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.quiet;
    context.fillText("step →", stage.width - RIGHT, TOP - 28);
  }

  // Brackets around agents that run their step together.
  drawClusters(context, theme, moment, order, x, y) {
    if (moment.basis !== "time" || this.row < 3) return;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1.5;
    for (let at = 0; at < order.length; ) {
      const [first, cluster] = [order[at], moment.cluster[order[at]]];
      let end = at + 1;
      const same = (agent) =>
        moment.cluster[agent] === cluster && moment.steps[agent] === moment.steps[first];
      while (cluster >= 0 && end < order.length && same(order[end])) end += 1;
      if (end - at > 1) {
        const right = x(moment.steps[first]) + 11;
        context.beginPath();
        context.moveTo(right - 4, y(first));
        context.lineTo(right, y(first));
        context.lineTo(right, y(order[end - 1]));
        context.lineTo(right - 4, y(order[end - 1]));
        context.stroke();
      }
      at = end;
    }
  }

  drawWaits(context, theme, moment, x, y) {
    if (moment.basis !== "time") return;
    context.strokeStyle = context.fillStyle = theme.alarm;
    context.lineWidth = 1.2;
    context.globalAlpha = this.side.agents > 100 ? 0.35 : 0.8;
    for (let agent = 0; agent < this.side.agents; agent += 1) {
      const blocker = moment.blockedBy[agent];
      if (blocker < 0) continue;
      const [x0, y0] = [x(moment.steps[agent]) + 7, y(agent)];
      const [x1, y1] = [x(moment.steps[blocker]) + 7, y(blocker)];
      const furthest = Math.max(x0, x1);
      // a curve reaches three quarters of the way to its bend: it stays on the canvas
      const edge = (this.stage.width - 5 - furthest / 4) / 0.75;
      const bend = Math.min(edge, furthest + 18 + Math.min(60, Math.abs(y1 - y0) / 5));
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(bend, y0, bend, y1, x1 + 5, y1);
      context.stroke();
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 + 7, y1 - 3.5);
      context.lineTo(x1 + 7, y1 + 3.5);
      context.fill();
    }
    context.globalAlpha = 1;
  }
}
