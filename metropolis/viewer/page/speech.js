// What agents on the map say: texts as far as these leave the map visible, and marks of others who speak.

import { Taken, rounded, wrapped } from "./canvas.js";

const SPOKEN_STEPS = 6; // for how long speech is shown
const TEXTS_MOST = 0.08; // of the map
const MARK = [17, 11];
const NAME = 18; // pixels above a building

// What is said now, first by agents that the reader points at or has selected, then the newest; returns the
// room that it takes.
export function drawSpeech(context, theme, moment, town) {
  const taken = new Taken();
  if (town.label) taken.take(...town.label);
  const said = saidNow(moment, town);
  if (!said.length) return taken;
  const ground = new Ground(town, taken);
  const [mapWidth, mapHeight] = ground.shownSize();
  const textWidth = Math.max(100, Math.min(190, 0.35 * mapWidth));
  let room = TEXTS_MOST * mapWidth * mapHeight;
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "top";
  context.textAlign = "left";
  const marked = [];
  for (const speech of said) {
    const { isAsked } = speech;
    const bubble = isAsked || room > 0 ? bubbleOf(context, speech.text, textWidth) : null;
    const fits = isAsked || (bubble !== null && bubble.area <= room);
    const box = fits ? ground.boxFor(speech.at, bubble.size, town.radius + 9, isAsked) : null;
    if (!fits) room = 0; // no text that is older, either
    if (box === null) {
      marked.push(speech);
      continue;
    }
    room -= bubble.area;
    drawBubble(context, theme, taken, box, speech.at);
    context.fillStyle = speech.age > SPOKEN_STEPS / 2 ? theme.quiet : theme.ink;
    bubble.lines.forEach((line, row) => context.fillText(line, box[0] + 8, box[1] + 6 + 15 * row));
  }
  for (const { at } of marked) {
    const box = ground.boxFor(at, MARK, town.radius + 5, true);
    if (box === null) continue;
    drawBubble(context, theme, taken, box, at);
    context.fillStyle = theme.ink;
    for (const dot of [4, 8.5, 13]) context.fillRect(box[0] + dot - 1, box[1] + MARK[1] / 2 - 1, 2, 2);
  }
  return taken;
}

// For each agent that spoke in the last steps, the first text of the last step in which it did.
function saidNow(moment, town) {
  const said = [];
  const asked = [town.hovered, town.page.selectedOn(town.side)];
  for (let agent = 0; agent < town.side.agents; agent += 1) {
    const step = moment.steps[agent];
    const at = town.place(agent);
    if (!town.isInside(...at)) continue;
    const texts = town.side.momentsOf(agent, step - SPOKEN_STEPS, step).filter(([, , kind]) => kind === "says");
    if (!texts.length) continue;
    const last = texts.at(-1)[0];
    said.push({ age: step - last, text: texts.find(([each]) => each === last)[3], at, isAsked: asked.includes(agent) });
  }
  return said.sort((a, b) => b.isAsked - a.isAsked || a.age - b.age);
}

function bubbleOf(context, text, textWidth) {
  const lines = wrapped(context, text, textWidth, 3);
  const size = [Math.max(...lines.map((line) => context.measureText(line).width)) + 16, 15 * lines.length + 10];
  return { lines, size, area: size[0] * size[1] };
}

// What bubbles should leave visible.
class Ground {
  constructor(town, taken) {
    this.town = town;
    this.taken = taken;
    this.agents = Array.from({ length: town.side.agents }, (_, agent) => town.place(agent));
    const half = town.stage.scale[0] / 2;
    this.buildings = (town.map?.areas ?? []).map(({ x0, y0, x1, y1 }) => {
      const [left, top] = town.placeOf(x0, y0);
      const [right, bottom] = town.placeOf(x1, y1);
      return [left - half, top - half - NAME, right + half, bottom + half];
    });
  }

  // Width and height of the part of the map that is on the canvas.
  shownSize() {
    const { stage, fold } = this.town;
    const { width, height } = stage;
    if (!fold) return [width, height];
    const [right, bottom] = [Math.min(width, stage.toX(fold.width)), Math.min(height, stage.toY(fold.height))];
    return [Math.max(0, right - Math.max(0, stage.toX(0))), Math.max(0, bottom - Math.max(0, stage.toY(0)))];
  }

  // A free box beside a place that hides no agent and no name, and as little as possible of buildings; or, if it
  // must be, that hides them. Null: there is none.
  boxFor([x, y], [width, height], away, mustBe) {
    const { stage, names, radius } = this.town;
    const beside = y - Math.max(height / 2, height - radius); // above the name
    const places = [
      [x - width / 2, y - away - height],
      [x - width / 2, y + away],
      [x - away - width, beside],
      [x + away, beside],
    ];
    const inside = (at, size, whole) => Math.max(4, Math.min(at, whole - size - 4));
    const free = places
      .map(([left, top]) => [inside(left, width, stage.width), inside(top, height, stage.height), width, height])
      .filter((box) => this.taken.isFree(...box));
    const [best] = free
      .filter((box) => names.isFree(...box) && !this.hidesAgent(box))
      .map((box) => ({ box, hidden: this.hiddenOfBuildings(box) }))
      .sort((a, b) => a.hidden - b.hidden);
    return best?.box ?? (mustBe ? free[0] : null) ?? null;
  }

  hidesAgent([left, top, width, height]) {
    const { radius } = this.town;
    return this.agents.some(([x, y]) => x > left - radius && x < left + width + radius && y > top - radius && y < top + height + radius);
  }

  // Pixels of buildings and of the names above them.
  hiddenOfBuildings([left, top, width, height]) {
    let hidden = 0;
    for (const [x0, y0, x1, y1] of this.buildings) {
      const across = Math.min(left + width, x1) - Math.max(left, x0);
      const down = Math.min(top + height, y1) - Math.max(top, y0);
      if (across > 0 && down > 0) hidden += across * down;
    }
    return hidden;
  }
}

// A box with a tail that points from its nearest point to the speaker.
function drawBubble(context, theme, taken, box, [x, y]) {
  const [left, top, width, height] = box;
  taken.take(...box);
  context.fillStyle = theme.bubble;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  rounded(context, ...box, Math.min(7, height / 2));
  context.fill();
  context.stroke();
  const nearX = Math.max(left + 6, Math.min(x, left + width - 6));
  const nearY = Math.max(top + 5, Math.min(y, top + height - 5));
  const isBeside = x < left || x > left + width;
  const tip = isBeside ? [x < left ? left - 6 : left + width + 6, nearY] : [nearX, y < top ? top - 6 : top + height + 6];
  const [dx, dy] = isBeside ? [0, 4] : [4, 0];
  context.beginPath();
  context.moveTo(nearX - dx, nearY - dy);
  context.lineTo(...tip);
  context.lineTo(nearX + dx, nearY + dy);
  context.fill();
}
