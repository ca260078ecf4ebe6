// Strips below the calls: calls in flight, the instances' batches and KV, the skew, and the tokens so far, or
// their cost.

import { fitted } from "./canvas.js";
import { category } from "./colours.js";
import { count } from "./format.js";

export const STRIP = 46; // pixels
const BINS = 16; // of time, for each pixel: calls shorter than a pixel count as well
// `at`: which of `measured`; `rank`: 0 is left out last.
const STRIPS = [
  { name: "calls in flight", at: 0, rank: 0 },
  { name: "batch by instance", at: 1, rank: 2, ofInstances: true },
  { name: "KV tokens by instance", at: 2, rank: 3, ofInstances: true },
  { name: "skew, steps", at: 3, rank: 1 },
  { name: "tokens so far", at: 4, rank: 4 },
];

// The strips of a side: of a run with prices, the cost instead of the tokens.
export function stripsOf({ instances, prices }) {
  const known = STRIPS.filter(({ ofInstances }) => !ofInstances || instances);
  return known.map((strip) => (strip.at === 4 && prices ? { ...strip, name: "cost so far", digits: 2 } : strip));
}

// The greatest value of every strip within each pixel.
export function measured(side, from, to, width) {
  const bins = width * BINS;
  const perBin = (to - from) / bins;
  const instances = Math.min(8, side.meta.instances);
  const flight = new Float64Array(bins + 1);
  const batch = Array.from({ length: instances }, () => new Float64Array(bins + 1));
  const kv = Array.from({ length: instances }, () => new Float64Array(bins + 1));
  const tokens = new Float64Array(bins + 1);
  const [perPrompt, perOutput] = (side.meta.prices ?? [1e6, 1e6]).map((price) => price / 1e6);
  const place = (time) => Math.min(bins, Math.max(0, Math.floor((time - from) / perBin)));
  for (const calls of side.callsBetween(-Infinity, to)) {
    for (let row = 0; row < calls.count; row += 1) {
      const sent = calls.sent[row];
      if (sent > to) break;
      const ended = calls.ended[row];
      if (ended < to + perBin) tokens[Math.min(bins - 1, place(ended))] += perPrompt * calls.prompt[row] + perOutput * calls.output[row];
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
    for (let at = 1; at < bins; at += 1) line[at] += line[at - 1];
  }
  const highest = (lines) => lines.map((line) => peaks(line, width));
  return [highest([flight]), highest(batch), highest(kv), [skew(side, from, to, width)], highest([tokens])];
}

// The greatest value of the bins of each pixel.
function peaks(line, width) {
  const found = new Float64Array(width);
  for (let x = 0; x < width; x += 1) found[x] = line.subarray(x * BINS, (x + 1) * BINS).reduce((a, b) => Math.max(a, b));
  return found;
}

// Steps from the last agent to the first, at each pixel.
function skew(side, from, to, width) {
  const every = Math.max(1, Math.ceil((side.agents * width) / 60_000));
  const steps = new Int32Array(side.agents);
  const line = new Float64Array(width);
  const isOptional = side.chunks.areMany(side.meta.counts.executions, 16 * side.perChunk * side.agents);
  for (let x = 0; x < width; x += every) {
    const floor = side.stepsAt(from + ((to - from) * x) / width, steps, isOptional);
    if (floor === null) continue; // a gap
    let front = 0;
    for (const step of steps) if (step > front) front = step;
    line.fill(front - floor, x, Math.min(width, x + every));
  }
  return line;
}

// A line for each of `lines`, on one scale; their numbers in their colours, if there are several.
export function drawStrip(context, theme, { name, digits = 0 }, lines, left, top) {
  let most = 0;
  for (const line of lines) for (const value of line) if (value > most) most = value;
  context.font = "11px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "top";
  context.fillStyle = theme.ink;
  context.fillText(fitted(context, name, left - 12), left - 10, top + 2);
  context.fillStyle = theme.quiet;
  context.fillText(`up to ${digits ? most.toFixed(digits) : count(Math.round(most))}`, left - 10, top + 16);
  context.fillStyle = theme.area;
  context.fillRect(left, top, lines[0].length, STRIP);
  const isOnly = lines.length === 1;
  lines.forEach((line, index) => {
    context.strokeStyle = context.fillStyle = isOnly ? theme.accent : theme[category(index)];
    if (!isOnly) {
      const x = left - 12 - 14 * (lines.length - 1 - index);
      context.fillRect(x - 11, top + 33, 13, 2);
      context.fillStyle = theme.ink;
      context.fillText(String(index), x, top + 36);
    }
    context.beginPath();
    line.forEach((value, x) => context.lineTo(left + x, top + STRIP - (most ? (value / most) * (STRIP - 3) : 0)));
    context.lineWidth = 1.2;
    context.stroke();
    if (!isOnly) return;
    context.lineTo(left + line.length - 1, top + STRIP);
    context.lineTo(left, top + STRIP);
    context.globalAlpha = 0.3;
    context.fillStyle = theme.accent;
    context.fill();
    context.globalAlpha = 1;
  });
}
