// Calls over the run's clock: a row for each agent, coloured by function; below it, the calls in
// flight, the instances' batches and KV, the skew, and the tokens so far.

import { Stage, fitted, ticks } from "./canvas.js";
import { category, leadColour } from "./colours.js";
import { count, seconds } from "./format.js";
import { FAILED, WASTED } from "./side.js";

const LEFT = 150;
const TOP = 30;
const STRIP = 46;
const STRIP_GAP = 8;
const ROW_MIN = 1;

export class Calls {
  constructor(page, side, canvas) {
    this.page = page;
    this.side = side;
    this.hovered = null;
    this.kept = null; // {key, canvas}: see picture()
    this.stage = new Stage(canvas, {
      draw: (context) => this.draw(context),
      onTap: (x, y) => this.tap(x, y),
      onHover: (x, y) => this.hover(x, y),
      onLeave: () => this.hover(-1, -1),
      onView: (isFirst, change) => {
        if (isFirst || (change && this.isFitted)) this.fit();
        this.clamp();
        if (!isFirst && !change) page.linkViews(this);
      },
    });
    this.stage.zoom = (factor, x, y) => this.zoom(factor, x, y);
  }

  get bottom() {
    return this.stage.height - this.strips.length * (STRIP + STRIP_GAP) - 6;
  }

  get strips() {
    const ofInstances = this.side.meta.instances ? ["batch by instance", "KV tokens by instance"] : [];
    return ["calls in flight", ...ofInstances, "skew, steps", "tokens so far"];
  }

  fit() {
    const { stage, side } = this;
    stage.scale = [(stage.width - LEFT - 16) / Math.max(1e-3, side.meta.end_s), 1];
    stage.offset[0] = LEFT;
    stage.scale[1] = Math.max(ROW_MIN, (this.bottom - TOP) / side.agents);
    stage.scale[1] = Math.min(stage.scale[1], 24);
    stage.offset[1] = TOP;
    stage.isDirty = true;
  }

  // Time zooms with the wheel; rows too while the pointer is on their names.
  zoom(factor, x = this.stage.width / 2, y = this.stage.height / 2) {
    const { stage } = this;
    if (x > LEFT) {
      stage.offset[0] = x - factor * (x - stage.offset[0]);
      stage.scale[0] *= factor;
    } else {
      stage.offset[1] = y - factor * (y - stage.offset[1]);
      stage.scale[1] *= factor;
    }
    this.clamp();
    this.page.linkViews(this);
  }

  // Keep the whole of the run or less in view.
  clamp() {
    const { stage, side } = this;
    const least = (stage.width - LEFT - 16) / Math.max(1e-3, side.meta.end_s);
    this.isFitted = stage.scale[0] <= least * 1.0001;
    if (this.isFitted) {
      stage.scale[0] = least;
      stage.offset[0] = LEFT;
    }
    stage.scale[0] = Math.min(stage.scale[0], 20_000);
    const end = stage.toX(side.meta.end_s);
    if (stage.offset[0] > LEFT) stage.offset[0] = LEFT;
    else if (end < stage.width - 16) stage.offset[0] += stage.width - 16 - end;
    const lowest = Math.min(24, Math.max(ROW_MIN, (this.bottom - TOP) / side.agents));
    stage.scale[1] = Math.max(lowest, Math.min(40, stage.scale[1]));
    const height = stage.scale[1] * side.agents;
    stage.offset[1] = Math.min(TOP, Math.max(stage.offset[1], Math.min(TOP, this.bottom - height)));
    stage.isDirty = true;
  }

  rowAt(y) {
    const agent = Math.floor(this.stage.fromY(y));
    return y > TOP && y < this.bottom && agent >= 0 && agent < this.side.agents ? agent : null;
  }

  callAt(x, y) {
    const agent = this.rowAt(y);
    if (agent === null || x < LEFT) return null;
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
    else if (x < LEFT) page.select(side.index, this.rowAt(y));
    else page.moveTo("time", this.stage.fromX(x));
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
    const from = stage.fromX(LEFT);
    const to = stage.fromX(stage.width);
    this.drawAxis(context, theme, from, to);
    context.save();
    context.beginPath();
    context.rect(0, TOP, stage.width, this.bottom - TOP);
    context.clip();
    this.drawRows(context, theme);
    this.drawCalls(context, theme, from, to);
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
      if (x > LEFT + 20) context.fillText(`${time.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} s`, x, TOP - 10);
    }
    context.textAlign = "right";
    context.fillText(this.side.isSimulated ? "simulated time" : "time", LEFT - 10, TOP - 10);
  }

  drawRows(context, theme) {
    const { page, side, stage } = this;
    const row = stage.scale[1];
    if (row < 10) return;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let agent = 0; agent < side.agents; agent += 1) {
      const y = stage.toY(agent + 0.5);
      if (y < TOP - row || y > this.bottom + row) continue;
      const isSelected = page.selectedOn(side) === agent;
      context.font = `${isSelected ? 700 : 400} 12px system-ui, sans-serif`;
      context.fillStyle = isSelected ? theme.accent : theme.ink;
      context.fillText(fitted(context, side.meta.agents[agent], LEFT - 16), LEFT - 10, y);
    }
  }

  // Draws one rectangle at most for each pixel of a row, however many calls there are.
  drawCalls(context, theme, from, to) {
    const { side, stage } = this;
    const row = stage.scale[1];
    const height = Math.max(1, row * 0.72);
    const drawn = new Int32Array(Math.max(1, Math.ceil(this.bottom - TOP)) + 2);
    const colours = side.meta.functions.map((_, index) => this.page.functionColour(side, index));
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
          const left = Math.max(LEFT, stage.toX(started));
          const queued = Math.max(LEFT, stage.toX(sent));
          if (left - queued > 1) queues.push(queued, y + height / 2, left - queued);
          if (right > LEFT) bars[calls.function[call]]?.push(left, y, Math.max(1, right - left));
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
    const { stage, strips } = this;
    const width = Math.max(1, Math.floor(stage.width - LEFT));
    const measured = this.measured(from, to, width);
    context.textBaseline = "top";
    strips.forEach((name, number) => {
      const top = this.bottom + 6 + number * (STRIP + STRIP_GAP);
      const lines = measured[number];
      let most = 0;
      for (const line of lines) for (const value of line) if (value > most) most = value;
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "right";
      context.fillStyle = theme.ink;
      context.fillText(name, LEFT - 10, top + 4);
      context.fillStyle = theme.quiet;
      context.fillText(`up to ${count(Math.round(most))}`, LEFT - 10, top + 19);
      context.fillStyle = theme.area;
      context.fillRect(LEFT, top, width, STRIP);
      lines.forEach((line, index) => {
        context.beginPath();
        context.moveTo(LEFT, top + STRIP);
        for (let x = 0; x < line.length; x += 1) {
          context.lineTo(LEFT + x, top + STRIP - (most ? (line[x] / most) * (STRIP - 3) : 0));
        }
        if (lines.length === 1) {
          context.lineTo(LEFT + line.length, top + STRIP);
          context.globalAlpha = 0.35;
          context.fillStyle = name === "skew, steps" ? leadColour(0.3) : theme.accent;
          context.fill();
          context.globalAlpha = 1;
        }
        context.strokeStyle = lines.length === 1 ? theme.accent : category(index);
        context.lineWidth = 1.2;
        context.stroke();
      });
    });
  }

  // The values of every strip at each pixel.
  measured(from, to, width) {
    const { side } = this;
    const perPixel = (to - from) / width;
    const instances = Math.min(8, side.meta.instances);
    const flight = new Float64Array(width + 1);
    const batch = Array.from({ length: instances }, () => new Float64Array(width + 1));
    const kv = Array.from({ length: instances }, () => new Float64Array(width + 1));
    const tokens = new Float64Array(width + 1);
    const place = (time) => Math.min(width, Math.max(0, Math.floor((time - from) / perPixel)));
    for (const calls of side.callsBetween(-Infinity, to)) {
      for (let row = 0; row < calls.count; row += 1) {
        const sent = calls.sent[row];
        if (sent > to) break;
        const ended = calls.ended[row];
        if (ended < to + perPixel) tokens[Math.min(width - 1, place(ended))] += calls.prompt[row] + calls.output[row];
        if (ended < from) continue;
        flight[place(sent)] += 1;
        flight[place(ended)] -= 1;
        const started = Number.isNaN(calls.started[row]) ? sent : calls.started[row];
        const instance = calls.instance[row];
        if (instance < 0 || instance >= instances) continue; // not known, or beyond those shown
        batch[instance][place(started)] += 1;
        batch[instance][place(ended)] -= 1;
        const held = calls.prompt[row] + calls.output[row];
        kv[instance][place(started)] += held;
        kv[instance][place(ended)] -= held;
      }
    }
    for (const line of [flight, ...batch, ...kv, tokens]) {
      for (let at = 1; at <= width; at += 1) line[at] += line[at - 1];
    }
    const cut = (lines) => lines.map((line) => line.subarray(0, width));
    return [cut([flight]), ...(instances ? [cut(batch), cut(kv)] : []), [this.skew(from, to, width)], cut([tokens])];
  }

  // Steps from the last agent to the first, at each pixel.
  skew(from, to, width) {
    const { page, side } = this;
    const every = Math.max(1, Math.ceil((side.agents * width) / 60_000));
    const steps = new Int32Array(side.agents);
    const line = new Float64Array(width);
    const isOptional = page.chunks.areMany(side.meta.counts.executions, 16 * side.perChunk * side.agents);
    for (let x = 0; x < width; x += every) {
      const floor = side.stepsAt(from + ((to - from) * x) / width, steps, isOptional);
      if (floor === null) continue; // a gap
      let front = 0;
      for (const step of steps) if (step > front) front = step;
      line.fill(front - floor, x, Math.min(width, x + every));
    }
    return line;
  }

  drawNow(context, theme) {
    const { page, stage, side } = this;
    const { basis, at } = page.state;
    const x = stage.toX(basis === "time" ? at : side.timeOfStep(Math.floor(at)));
    if (x < LEFT || x > stage.width) return;
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
    const width = Math.max(...lines.map((line) => context.measureText(line).width)) + 18;
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
      context.fillText(line, left + 9, top + 8 + 17 * number);
    });
  }
}
