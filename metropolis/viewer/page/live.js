// Follows a run that goes on: new chunks, the numbers of the run, and its controls.

import { compare } from "./differences.js";
import { byId } from "./elements.js";
import { ago, count } from "./format.js";

const COMMANDS = ["pause", "resume", "stop"];
const ENDED = "the viewer has ended: `metropolis view` shows the run again";

export async function follow(page) {
  byId("live").hidden = false;
  page.state.isLive = true;
  for (const command of COMMANDS) {
    byId(`run-${command}`).addEventListener("click", () => control(page, command));
  }
  try {
    await page.source.follow((event) => receive(page, event));
    disconnected(page, ENDED);
  } catch (error) {
    // the browser's own sentences on a lost connection do not say whose it was
    disconnected(page, error instanceof TypeError ? ENDED : error.message);
  }
}

function disconnected(page, sentence) {
  byId("live-state").textContent = sentence;
  byId("live-numbers").textContent = ""; // they may be older than the run's end
  for (const command of COMMANDS) byId(`run-${command}`).hidden = true;
  for (const side of page.sides) side.update({ live: false });
  page.state.set({ isLive: false });
}

async function control(page, command) {
  if (command === "stop" && !confirm("Stop the run? It can be resumed later.")) return;
  try {
    await page.source.control(command);
  } catch (error) {
    byId("live-state").textContent = error.message;
  }
}

export function receive(page, { side: index, meta, changed, status, error }) {
  const side = page.sides[index];
  if (error) byId("live-state").textContent = error;
  if (meta) {
    side.update(meta);
    page.describe();
  }
  for (const [name, numbers] of Object.entries(changed ?? {})) {
    for (const number of numbers) page.chunks.renew(side.path(name, number));
  }
  if (page.isBranch && changed?.moments) compare(page);
  if (meta || changed) page.chunkArrived();
  if (status) show(status, page);
}

function show(status, page) {
  const parts = [
    ["calls", status.calls],
    ["in flight", status.in_flight],
    ["tokens", status.tokens],
    ["floor", status.floor],
    ["front", status.newest],
  ];
  const text = parts.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => `${name} ${count(value)}`);
  if (status.cost) text.push(`cost ${status.cost.toFixed(2)}`);
  if (status.time_left_s !== null && status.time_left_s !== undefined) text.push(`${ago(status.time_left_s)} left`);
  byId("live-numbers").textContent = text.join(" · ");
  byId("live-state").textContent = status.state ?? (status.paused ? "paused" : "runs");
  const canControl = Boolean(status.can_control);
  byId("run-pause").hidden = !canControl || Boolean(status.paused);
  byId("run-resume").hidden = !canControl || !status.paused;
  byId("run-stop").hidden = !canControl;
  if (status.state === "ended") page.state.set({ isLive: false });
}
