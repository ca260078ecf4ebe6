// Calls over the run's clock: a row for each agent, coloured by function; below it, the calls in
// flight, the instances' batches and KV, the skew, and the tokens so far.

import { fitted, ticks } from "./canvas.js";
import { count, seconds } from "./format.js";
import { Rows } from "./rows.js";
import { FAILED, WASTED } from "./side.js";
import { STRIP, drawStrip, measured, stripsOf } from "./strips.js";

const TOP = 30;
const STRIP_GAP = 8;

export class Calls extends Rows {
  top = TOP;
  right = 16;
  rowMin = 1;
  rowMost = 30;
  finest = 20_000;

  constructor(page, side, canvas) {
    super(page, side, canvas, {
      onTap: (x, y) => this.tap(x, y),
      onHover: (x, y) => this.hover(x, y),
      onLeave: () => this.hover(-1, -1),
    });
    this.hovered = null;
    this.kept = null; // {key, canvas}: see picture()
  }

  get bottom() {
    const free = this.stage.height - this.strips.length * (STRIP + STRIP_GAP) - 6;
    return Math.min(free, TOP + this.rowMost * this.side.agents);
  }

  // As many strips as leave enough room for the rows, the most important ones.
  get strips() {
    const { height } = this.stage;
    const rows = Math.max(60, Math.min(12 * this.side.agents, 0.5 * height));
    const room = Math.floor((height - TOP - rows - 6) / (STRIP + STRIP_GAP));
    const known = stripsOf(this.side.meta);
    const shown = [...known].sort((a, b) => a.rank - b.rank).slice(0, Math.max(0, room));
    return known.filter((strip) => shown.includes(strip));
  }

  // Two sides have the same axis: the longer run's.
  get end() {
    return Math.max(1e-3, ...this.page.sides.map(({ meta }) => meta.end_s || 0));
  }

  callAt(x, y) {
    const agent = this.rowAt(y);
    if (agent === null || x < this.left) return null;
    const slack = 3 / this.stage.scale[0];
    const time = this.stage.fromX(x);
    let best = null;
    for (const calls of this.side.callsBetween(time - slack, time + slack)) {
      for (let at = calls.offsets[agent]; at < calls.offsets[agent + 1]; at += 1) {
        const row = calls.order[at];
        if (calls.sent[row] - slack > time) break;
        if (calls.ended[row] + slack >= time) best = { calls, row };
      }
    }
    return best;
  }

  tap(x, y) {
    const found = this.callAt(x, y);
    const { page, side } = this;
    if (found !== null) page.openCall(side.index, found.calls, found.row);
    else if (x < this.left) page.select(side.index, this.rowAt(y));
    else if (page.hasTimes) page.moveTo("time", this.stage.fromX(x));
  }

  hover(x, y) {
    const found = x < 0 ? null : this.callAt(x, y);
    const index = found === null ? null : found.calls.index[found.row];
    this.stage.canvas.style.cursor = index === null ? "" : "pointer";
    if (index === (this.hovered?.index ?? null)) return;
    this.hovered = found === null ? null : { ...found, index, x, y };
    this.stage.isDirty = true;
  }

  // --- drawing

  draw(context) {
    const { stage } = this;
    const { theme } = this.page;
    context.drawImage(this.picture(), 0, 0, stage.width, stage.height);
    this.drawNow(context, theme);
    if (this.hovered !== null) this.drawHovered(context, theme);
  }

  // All that does not depend on the moment, kept until the view or the data change.
  picture() {
    const { page, side, stage } = this;
    const selected = page.selectedOn(side);
    const key = [...stage.offset, ...stage.scale, stage.canvas.width, stage.canvas.height, page.version, selected, page.theme.paper].join();
    if (this.kept?.key === key) return this.kept.canvas;
    const canvas = this.kept?.canvas ?? document.createElement("canvas");
    canvas.width = stage.canvas.width;
    canvas.height = stage.canvas.height;
    const context = canvas.getContext("2d");
    context.scale(canvas.width / stage.width, canvas.height / stage.height);
    this.drawData(context);
    this.kept = { key, canvas };
    return canvas;
  }

  drawData(context) {
    const { stage } = this;
    const { theme } = this.page;
    const from = stage.fromX(this.left);
    const to = stage.fromX(stage.width);
    this.drawAxis(context, theme, from, to);
    context.save();
    context.beginPath();
    context.rect(0, TOP, stage.width, this.bottom - TOP);
    context.clip();
    this.drawRows(context, theme);
    this.drawCalls(context, theme, from, to);
    if (!this.side.meta.calls) this.drawNone(context, theme);
    context.restore();
    this.drawStrips(context, theme, from, to);
  }

  drawAxis(context, theme, from, to) {
    const { stage } = this;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const { step, found } = ticks(from, to, stage.width / 110);
    const digits = step < 1 ? Math.ceil(-Math.log10(step)) : 0;
    for (const time of found) {
      const x = stage.toX(time);
      context.strokeStyle = theme.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x, TOP - 4);
      context.lineTo(x, stage.height);
      context.stroke();
      context.fillStyle = theme.quiet;
      context.textAlign = x > stage.width - 30 ? "right" : "center";
      if (x > this.left + 20) context.fillText(`${time.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} s`, Math.min(x, stage.width - 3), TOP - 10);
    }
    context.textAlign = "right";
    context.fillText(this.side.isSimulated ? "simulated time" : "time", this.left - 10, TOP - 10);
  }

  drawRows(context, theme) {
    const { page, side, stage } = this;
    const row = stage.scale[1];
    const selected = page.selectedOn(side);
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let agent = 0; agent < side.agents; agent += 1) {
      const y = stage.toY(agent + 0.5);
      const isSelected = selected === agent;
      if (y < TOP - row || y > this.bottom + row || (row < 10 && !isSelected)) continue;
      context.font = `${isSelected ? 700 : 400} 12px system-ui, sans-serif`;
      context.fillStyle = isSelected ? theme.accent : theme.ink;
      context.fillText(fitted(context, side.meta.agents[agent], this.left - 16), this.left - 10, y);
    }
  }

  drawNone(context, theme) {
    context.font = "14px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillStyle = theme.quiet;
    context.fillText("No calls are recorded.", (this.left + this.stage.width) / 2, TOP + 24);
  }

  // Draws one rectangle at most for each pixel of a row, however many calls there are.
  drawCalls(context, theme, from, to) {
    const { side, stage } = this;
    const row = stage.scale[1];
    const height = Math.max(1, row * 0.72);
    const drawn = new Int32Array(Math.max(1, Math.ceil(this.bottom - TOP)) + 2);
    const colours = side.meta.functions.map((_, index) => theme[this.page.functionCategory(side, index)]);
    const bars = colours.map(() => []);
    const queues = [];
    const marked = [];
    for (const calls of side.callsBetween(from, to)) {
      drawn.fill(-1);
      for (let agent = 0; agent < side.agents; agent += 1) {
        const y = stage.toY(agent) + (row - height) / 2;
        if (y + height < TOP || y > this.bottom) continue;
        const pixel = Math.max(0, Math.round(y - TOP));
        let covered = row < 2 ? drawn[pixel] : -1;
        for (let at = calls.offsets[agent]; at < calls.offsets[agent + 1]; at += 1) {
          const call = calls.order[at];
          const sent = calls.sent[call];
          if (sent > to) break;
          const ended = calls.ended[call];
          if (ended < from) continue;
          const right = stage.toX(ended);
          if (right <= covered) continue;
          const started = Number.isNaN(calls.started[call]) ? sent : calls.started[call];
          const left = Math.max(this.left, stage.toX(started));
          const queued = Math.max(this.left, stage.toX(sent));
          if (left - queued > 1) queues.push(queued, y + height / 2, left - queued);
          if (right > this.left) bars[calls.function[call]]?.push(left, y, Math.max(1, right - left));
          if (calls.flags[call]) marked.push([left, y, Math.max(2, right - left), calls.flags[call]]);
          covered = Math.max(covered, Math.floor(left) + 1);
        }
        if (row < 2) drawn[pixel] = covered;
      }
    }
    context.fillStyle = row < 4 ? theme.line : theme.quiet;
    const thin = Math.max(1, height * 0.14);
    for (let at = 0; at < queues.length; at += 3) {
      context.fillRect(queues[at], queues[at + 1] - thin / 2, queues[at + 2], thin);
    }
    bars.forEach((list, index) => {
      context.fillStyle = colours[index];
      for (let at = 0; at < list.length; at += 3) context.fillRect(list[at], list[at + 1], list[at + 2], height);
    });
    for (const [x, y, width, flags] of marked) {
      context.fillStyle = flags & FAILED ? theme.alarm : theme.paper;
      if (flags & (FAILED | WASTED)) context.fillRect(x, y + height * 0.35, width, Math.max(1, height * 0.3));
    }
  }

  drawStrips(context, theme, from, to) {
    const { left, stage } = this;
    const values = this.measured(from, to, Math.max(1, Math.floor(stage.width - left)));
    this.strips.forEach((strip, number) => {
      drawStrip(context, theme, strip, values[strip.at], left, this.bottom + 6 + number * (STRIP + STRIP_GAP));
    });
  }

  // The greatest value of every strip within each pixel.
  measured(from, to, width) {
    return measured(this.side, from, to, width);
  }

  drawNow(context, theme) {
    const { page, stage, side } = this;
    const { basis, at } = page.state;
    const x = stage.toX(basis === "time" ? at : side.timeOfStep(Math.floor(at)));
    if (x < this.left || x > stage.width) return;
    context.strokeStyle = theme.accent;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, TOP - 6);
    context.lineTo(x, stage.height);
    context.stroke();
  }

  drawHovered(context, theme) {
    const { calls, row, x, y } = this.hovered;
    const { meta } = this.side;
    const queued = calls.started[row] - calls.sent[row];
    const lines = [
      meta.functions[calls.function[row]] ?? "",
      `${meta.agents[calls.agent[row]]}, step ${count(calls.step[row])}`,
      `${seconds(calls.completed[row] - calls.sent[row])}${queued > 0 ? `, of which ${seconds(queued)} in the queue` : ""}`,
      `${count(calls.prompt[row])} + ${count(calls.output[row])} tokens${calls.instance[row] < 0 ? "" : `, instance ${calls.instance[row]}`}`,
    ];
    context.font = "12px system-ui, sans-serif";
    const widest = Math.max(...lines.map((line) => context.measureText(line).width));
    const width = Math.min(widest + 18, this.stage.width - 12);
    const left = Math.min(x + 14, this.stage.width - width - 6);
    const top = Math.min(y + 14, this.stage.height - 86);
    context.fillStyle = theme.bubble;
    context.strokeStyle = theme.line;
    context.beginPath();
    context.roundRect(left, top, width, 80, 7);
    context.fill();
    context.stroke();
    context.textAlign = "left";
    context.textBaseline = "top";
    lines.forEach((line, number) => {
      context.font = `${number ? 400 : 600} 12px system-ui, sans-serif`;
      context.fillStyle = number ? theme.quiet : theme.ink;
      context.fillText(fitted(context, line, width - 18), left + 9, top + 8 + 17 * number);
    });
  }
}
