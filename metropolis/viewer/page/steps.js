// Who is how far ahead of the floor, who runs together, and who waits for whom: a row for each agent.

import { fitted, ticks } from "./canvas.js";
import { leadColour } from "./colours.js";
import { count } from "./format.js";
import { FINISHED, WAITING } from "./moment.js";
import { Rows } from "./rows.js";

const TOP = 44;
const RIGHT = 24;

// The axis begins with the floor, so it goes along with the agents.
export class Steps extends Rows {
  top = TOP;
  right = RIGHT;
  rowMin = 1e-3;
  rowMost = 26;
  finest = 40;

  constructor(page, side, canvas) {
    super(page, side, canvas, { onTap: (x, y) => page.select(side.index, this.agentAt(y)) });
  }

  get bottom() {
    return this.stage.height - 16;
  }

  get end() {
    return this.page.leads.most;
  }

  // Agents by lead, coupled ones together.
  order() {
    const moment = this.page.moments[this.side.index];
    const key = (agent) => (moment.cluster[agent] < 0 ? agent : moment.cluster[agent]);
    return [...moment.steps.keys()].sort(
      (a, b) => moment.steps[b] - moment.steps[a] || key(a) - key(b) || a - b,
    );
  }

  agentAt(y) {
    return this.order()[this.rowAt(y)] ?? null;
  }

  draw(context) {
    const { page, side, stage, left } = this;
    const { theme } = page;
    const moment = page.moments[side.index];
    const order = this.order();
    const rowOf = new Int32Array(side.agents);
    order.forEach((agent, at) => (rowOf[agent] = at));
    const x = (step) => stage.toX(step - moment.floor);
    const y = (agent) => stage.toY(rowOf[agent] + 0.5);
    this.drawAxis(context, theme, moment, x);
    const isShown = (agent) => y(agent) > TOP - stage.scale[1] && y(agent) < this.bottom + stage.scale[1];
    const shown = order.filter(isShown);
    context.save();
    context.beginPath();
    context.rect(0, TOP - 6, stage.width, this.bottom - TOP + 12); // names may be higher than rows
    context.clip();
    this.drawNames(context, theme, shown, y);
    context.beginPath();
    context.rect(stage.offset[0] < left ? left : left - 8, 0, stage.width, stage.height); // a mark at the floor is whole
    context.clip();
    this.drawSteps(context, theme, moment, shown, x, y);
    this.drawClusters(context, theme, moment, order, x, y);
    this.drawWaits(context, theme, moment, x, y);
    context.restore();
  }

  drawNames(context, theme, shown, y) {
    const { page, side, stage, left } = this;
    const selected = page.selectedOn(side);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const agent of shown) {
      const isSelected = selected === agent;
      if (stage.scale[1] < 11 && !isSelected) continue;
      context.font = `${isSelected ? 700 : 400} 12px system-ui, sans-serif`;
      context.fillStyle = isSelected ? theme.accent : theme.ink;
      context.fillText(fitted(context, side.meta.agents[agent], left - 16), left - 10, y(agent));
    }
  }

  drawSteps(context, theme, moment, shown, x, y) {
    const { page } = this;
    const row = this.stage.scale[1];
    const bar = Math.max(1, Math.min(12, row * 0.6));
    for (const agent of shown) {
      const lead = moment.steps[agent] - moment.floor;
      const waits = moment.status[agent] === WAITING;
      const isOver = moment.status[agent] === FINISHED;
      context.fillStyle = context.strokeStyle = leadColour(page.leads.share(lead));
      context.globalAlpha = waits || isOver ? 0.3 : 0.85;
      context.fillRect(x(moment.floor), y(agent) - bar / 2, Math.max(3, x(moment.steps[agent]) - x(moment.floor)), bar);
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
    }
  }

  drawAxis(context, theme, moment, x) {
    const { left, stage } = this;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    context.strokeStyle = theme.line;
    context.fillStyle = theme.quiet;
    context.lineWidth = 1;
    context.textAlign = "center";
    const from = moment.floor + stage.fromX(left);
    const to = moment.floor + Math.min(this.end, stage.fromX(stage.width));
    const showsFloor = x(moment.floor) > left - 1;
    for (const step of ticks(from, to, Math.max(2, stage.width / 130)).found) {
      context.beginPath();
      context.moveTo(x(step), TOP - 6);
      context.lineTo(x(step), stage.height - 10);
      context.stroke();
      if (!showsFloor || x(step) - left > 56) context.fillText(count(Math.round(step)), x(step), TOP - 12);
    }
    if (showsFloor) this.drawFloor(context, theme, moment);
    context.textAlign = "right";
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = theme.quiet;
    context.fillText("step →", stage.width - RIGHT, TOP - 28);
  }

  drawFloor(context, theme, moment) {
    const { left, stage } = this;
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(left, TOP - 6);
    context.lineTo(left, stage.height - 10);
    context.stroke();
    context.fillStyle = theme.ink;
    context.font = "600 11px system-ui, sans-serif";
    context.fillText(`floor ${count(moment.floor)}`, left, TOP - 12);
  }

  // Brackets around agents that run their step together.
  drawClusters(context, theme, moment, order, x, y) {
    if (moment.basis !== "time" || this.stage.scale[1] < 3) return;
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
      const bend = Math.max(furthest, Math.min(edge, furthest + 18 + Math.min(60, Math.abs(y1 - y0) / 5)));
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
