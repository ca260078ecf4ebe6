// What agents on the map say.

import { Taken, rounded, wrapped } from "./canvas.js";

const SPOKEN_STEPS = 6; // for how long speech is shown
const BUBBLES_MAX = 14;

// What is said now, newest first, where there is room; returns the room that it takes.
export function drawSpeech(context, theme, moment, town) {
  const said = [];
  for (let agent = 0; agent < town.side.agents; agent += 1) {
    const step = moment.steps[agent];
    const [x, y] = town.place(agent);
    if (!town.isInside(x, y)) continue;
    for (const [at, , kind, text] of town.side.momentsOf(agent, step - SPOKEN_STEPS, step)) {
      if (kind === "says") said.push({ agent, age: step - at, text, x, y });
    }
  }
  said.sort((a, b) => a.age - b.age);
  const taken = new Taken();
  if (town.label) taken.take(...town.label);
  const spoke = new Set();
  context.font = "12px system-ui, sans-serif";
  for (const { agent, age, text, x, y } of said) {
    if (spoke.has(agent) || spoke.size === BUBBLES_MAX) continue;
    const lines = wrapped(context, text, 190, 3);
    const width = Math.max(...lines.map((line) => context.measureText(line).width)) + 16;
    const height = 15 * lines.length + 10;
    const left = Math.min(Math.max(4, x - width / 2), town.stage.width - width - 4);
    const top = Math.max(4, y - town.radius - height - 9);
    if (!taken.isFree(left, top, width, height)) continue;
    spoke.add(agent);
    taken.take(left, top, width, height);
    context.fillStyle = theme.bubble;
    context.strokeStyle = theme.line;
    context.lineWidth = 1;
    rounded(context, left, top, width, height, 7);
    context.fill();
    context.stroke();
    context.beginPath();
    context.moveTo(x - 4, top + height - 0.5);
    context.lineTo(x, top + height + 6);
    context.lineTo(x + 4, top + height - 0.5);
    context.fill();
    context.fillStyle = age > SPOKEN_STEPS / 2 ? theme.quiet : theme.ink;
    context.textAlign = "left";
    context.textBaseline = "top";
    lines.forEach((line, row) => context.fillText(line, left + 8, top + 6 + 15 * row));
  }
  return taken;
}
