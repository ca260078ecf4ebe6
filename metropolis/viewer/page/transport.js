// The bar at the bottom: play, scrub by time or by step, speed, and where one is.

import { byId } from "./elements.js";
import { count, plural, seconds, worldTime } from "./format.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];
const WHOLE_S = 90; // of the reader, for the whole run at speed 1

export class Transport {
  constructor(page) {
    this.page = page;
    this.slider = byId("scrub");
    this.context = byId("skyline").getContext("2d");
    byId("play").addEventListener("click", () => this.toggle());
    byId("slower").addEventListener("click", () => this.accelerate(-1));
    byId("faster").addEventListener("click", () => this.accelerate(1));
    for (const basis of ["time", "step"]) {
      byId(`by-${basis}`).addEventListener("click", () => page.setBasis(basis));
    }
    this.slider.addEventListener("input", () => {
      page.state.set({ at: Number(this.slider.value), isPlaying: false, isLive: false });
    });
    byId("to-end").addEventListener("click", () => page.state.set({ isLive: true, isPlaying: false }));
    new ResizeObserver(() => (this.skylineKey = null)).observe(byId("skyline"));
  }

  // The last time or step.
  get end() {
    const { sides, state } = this.page;
    const ends = sides.map(({ meta }) => (state.basis === "time" ? meta.end_s : meta.steps));
    return Math.max(0, ...ends);
  }

  toggle() {
    const { state } = this.page;
    const restarts = !state.isPlaying && state.at >= this.end;
    state.set({ isPlaying: !state.isPlaying, isLive: false, ...(restarts ? { at: 0 } : {}) });
  }

  accelerate(by) {
    const { state } = this.page;
    const at = SPEEDS.indexOf(state.speed) + by;
    state.set({ speed: SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, at))] });
  }

  // Advance by the seconds that have passed for the reader.
  play(passed) {
    const { state } = this.page;
    if (!state.isPlaying) return;
    const rate = state.basis === "time" ? this.end / WHOLE_S : Math.max(2, this.end / (8 * WHOLE_S));
    const at = Math.min(this.end, state.at + passed * state.speed * rate);
    state.set({ at, isPlaying: at < this.end });
  }

  update() {
    const { page, slider } = this;
    const { state } = page;
    const { end } = this;
    slider.max = String(end);
    slider.step = state.basis === "step" ? "1" : "any";
    slider.value = String(state.at);
    byId("play").textContent = state.isPlaying ? "❚❚" : "▶";
    byId("play").setAttribute("aria-label", state.isPlaying ? "Pause" : "Play");
    byId("speed").textContent = `${state.speed}×`;
    byId("by-time").setAttribute("aria-pressed", String(state.basis === "time"));
    byId("by-step").setAttribute("aria-pressed", String(state.basis === "step"));
    byId("to-end").hidden = !page.sides.some((side) => side.meta.live);
    byId("to-end").setAttribute("aria-pressed", String(state.isLive));
    const text = this.reading();
    byId("reading").textContent = text;
    slider.setAttribute("aria-valuetext", text);
    this.drawSkyline();
  }

  reading() {
    const { page } = this;
    const { state } = page;
    const moment = page.moments[state.side];
    const side = page.sides[state.side];
    if (state.basis === "time" && page.sides.length > 1) return `${seconds(state.at)} of ${seconds(this.end)}`; // the rest is in the captions
    const step = Math.floor(state.at);
    if (state.basis === "step") return `step ${count(step)} of ${count(this.end)} · ${worldTime(side, step)}`;
    return `${seconds(state.at)} of ${seconds(this.end)} · floor ${count(moment.floor)} (${worldTime(side, moment.floor)}) · lead ${plural(moment.lead, "step")}`;
  }

  // Calls over the whole run, behind the slider.
  drawSkyline() {
    const { page, context } = this;
    const canvas = context.canvas;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const side = page.sides[page.state.side];
    const loaded = [...side.callsBetween(-Infinity, Infinity)].length;
    const key = `${page.state.side} ${page.state.basis} ${width} ${loaded} ${page.version} ${page.theme.ink}`;
    if (!width || key === this.skylineKey) return;
    this.skylineKey = key;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const columns = new Float64Array(width);
    const { end } = this;
    for (const calls of side.callsBetween(-Infinity, Infinity)) {
      const at = page.state.basis === "time" ? calls.sent : calls.step;
      for (let row = 0; row < calls.count; row += 1) {
        columns[Math.min(width - 1, Math.floor((at[row] / Math.max(1e-9, end)) * width))] += 1;
      }
    }
    const most = Math.max(1, ...columns);
    context.fillStyle = page.theme.quiet;
    columns.forEach((value, x) => {
      const tall = Math.sqrt(value / most) * (height - 2);
      context.fillRect(x, height - tall, 1, tall);
    });
  }
}
