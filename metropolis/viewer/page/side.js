// One side of the page: a run, or a lane of a replay. It answers what is known now, and asks for the
// chunks that it lacks.

import { asFloats, asJSON } from "./source.js";

const NEVER = Infinity;
const CALLS_BYTES = 48 * 65_536; // of a full chunk

export class Side {
  constructor(index, meta, chunks) {
    this.index = index;
    this.chunks = chunks;
    this.hints = new Int32Array(meta.agents.length);
    this.numbers = new Map(meta.agents.map((name, agent) => [name, agent]));
    this.update(meta);
  }

  static async open(index, chunks) {
    const meta = await chunks.load(`${index}/meta/0`, asJSON);
    return new Side(index, meta, chunks);
  }

  // Of a run that goes on, only what can change comes again.
  update(meta) {
    this.meta = { ...this.meta, ...meta };
    this.agents = this.meta.agents.length;
    this.perChunk = this.meta.chunk_steps;
    this.isSimulated = this.meta.clock === "simulated";
  }

  path(name, number) {
    return `${this.index}/${name}/${number}`;
  }

  // --- positions, by step

  positionsChunk(number) {
    return this.chunks.get(this.path("positions", number), asFloats);
  }

  // The chunk of the positions at the beginning of a step; those after the last step are in its chunk.
  positionsNumber(step) {
    return Math.min(Math.floor(step / this.perChunk), this.meta.counts.positions - 1);
  }

  // Whether `into` ([x, y], from `at` on) now has the position of an agent at the beginning of a step.
  position(agent, step, into, at = 0) {
    const known = Math.min(step, this.meta.steps);
    const number = this.positionsNumber(known);
    const chunk = this.positionsChunk(number);
    if (chunk === null) return false;
    const rows = Math.floor(chunk.length / (2 * this.agents)); // of a run that goes on, a few less may be known
    if (rows === 0) return false;
    const row = 2 * (Math.min(known - number * this.perChunk, rows - 1) * this.agents + agent);
    into[at] = chunk[row];
    into[at + 1] = chunk[row + 1];
    return true;
  }

  // A promise of the positions of all agents at the beginning of a step, or after the last recorded one.
  async positionsAt(step) {
    const number = this.positionsNumber(step);
    const path = this.path("positions", number);
    const chunk = this.chunks.kept.get(path)?.isNew ? this.positionsChunk(number) : await this.chunks.load(path, asFloats);
    const row = 2 * this.agents * (step - number * this.perChunk);
    return chunk.subarray(row, row + 2 * this.agents);
  }

  // --- executions, by step and time

  executionsChunk(number, isOptional = false) {
    return this.chunks.get(this.path("executions", number), (buffer) => {
      const rows = buffer.byteLength / 16;
      return {
        rows,
        dispatched: new Float32Array(buffer, 0, rows),
        committed: new Float32Array(buffer, 4 * rows, rows),
        blockedBy: new Int32Array(buffer, 8 * rows, rows),
        cluster: new Int32Array(buffer, 12 * rows, rows),
      };
    }, isOptional);
  }

  // {dispatched, committed, blockedBy, cluster} of an agent-step; null while it is unknown.
  execution(agent, step) {
    const number = Math.floor(step / this.perChunk);
    if (step < 0 || number >= this.meta.counts.executions) return null;
    const chunk = this.executionsChunk(number);
    if (chunk === null) return null;
    const row = (step - number * this.perChunk) * this.agents + agent;
    if (row >= chunk.rows) return null;
    return {
      dispatched: chunk.dispatched[row],
      committed: chunk.committed[row],
      blockedBy: chunk.blockedBy[row],
      cluster: chunk.cluster[row],
    };
  }

  committed(agent, step) {
    const number = Math.floor(step / this.perChunk);
    if (number >= this.meta.counts.executions) return NEVER;
    const chunk = this.executionsChunk(number);
    if (chunk === null) return undefined;
    const row = (step - number * this.perChunk) * this.agents + agent;
    const time = row < chunk.rows ? chunk.committed[row] : NaN;
    return Number.isNaN(time) ? NEVER : time;
  }

  // The committed time of the last step of each chunk, (chunks, agents).
  ends() {
    return this.chunks.get(this.path("ends", 0), asFloats);
  }

  // The step that each agent is at, at a time: its first one that is not committed. Returns the floor;
  // null: `isOptional`, and a chunk is missing.
  stepsAt(time, steps, isOptional = false) {
    const ends = this.ends();
    let floor = Infinity;
    for (let agent = 0; agent < this.agents; agent += 1) {
      steps[agent] = this.stepAt(agent, time, ends, isOptional);
      if (steps[agent] < 0) return null;
      if (steps[agent] < floor) floor = steps[agent];
    }
    return floor;
  }

  stepAt(agent, time, ends, isOptional) {
    if (ends === null) return this.hints[agent];
    // the first chunk whose last step is not committed at that time
    let low = 0;
    let high = ends.length / this.agents;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle * this.agents + agent] <= time) low = middle + 1;
      else high = middle;
    }
    if (!this.meta.counts.executions) return 0;
    low = Math.min(low, this.meta.counts.executions - 1);
    const chunk = this.executionsChunk(low, isOptional);
    if (chunk === null) return isOptional ? -1 : this.hints[agent];
    let first = 0;
    let last = Math.floor(chunk.rows / this.agents);
    while (first < last) {
      const middle = (first + last) >> 1;
      if (chunk.committed[middle * this.agents + agent] <= time) first = middle + 1;
      else last = middle;
    }
    return (this.hints[agent] = low * this.perChunk + first);
  }

  // The time at which all agents have come to `step`; the end of the run if that is not known.
  timeOfStep(step) {
    if (step <= 0) return 0;
    let latest = 0;
    for (let agent = 0; agent < this.agents; agent += 1) {
      const time = this.committed(agent, step - 1);
      if (time === undefined || time === NEVER) return this.meta.end_s;
      if (time > latest) latest = time;
    }
    return latest;
  }

  // --- moments

  momentsChunk(number) {
    return this.chunks.get(this.path("moments", number), asJSON);
  }

  loadMoments(number) {
    return this.chunks.load(this.path("moments", number), asJSON);
  }

  // What an agent does at a step: {label, emoji, place, asleep}; null while it is unknown.
  doing(agent, step) {
    const number = Math.min(
      Math.floor(Math.max(0, step) / this.perChunk),
      this.meta.counts.moments - 1,
    );
    if (number < 0) return null;
    const chunk = this.momentsChunk(number);
    if (chunk === null) return null;
    const byAgent = this.momentsByAgent(chunk);
    const own = byAgent.get(agent) ?? [];
    let found = chunk.now?.[agent] ?? null;
    for (const [at, , kind, text, extra] of own) {
      if (at > step) break;
      if (kind === "does") found = { ...(extra ?? {}), label: text };
    }
    return found;
  }

  momentsByAgent(chunk) {
    if (chunk.byAgent === undefined) {
      chunk.byAgent = new Map();
      for (const moment of chunk.moments) {
        const own = chunk.byAgent.get(moment[1]);
        if (own === undefined) chunk.byAgent.set(moment[1], [moment]);
        else own.push(moment);
      }
    }
    return chunk.byAgent;
  }

  // The moments of an agent from `first` to `last` step, both included, as far as they are known.
  momentsOf(agent, first, last) {
    const found = [];
    const from = Math.max(0, Math.floor(first / this.perChunk));
    const to = Math.min(Math.floor(last / this.perChunk), this.meta.counts.moments - 1);
    for (let number = from; number <= to; number += 1) {
      const chunk = this.momentsChunk(number);
      if (chunk === null) continue;
      for (const moment of this.momentsByAgent(chunk).get(agent) ?? []) {
        if (moment[0] >= first && moment[0] <= last) found.push(moment);
      }
    }
    return found;
  }

  // Calls `visit(moments)` for every chunk of moments in order; stops when `isStale()`.
  async scanMoments(visit, isStale) {
    for (let number = 0; number < this.meta.counts.moments; number += 1) {
      const chunk = await this.loadMoments(number);
      if (isStale()) return;
      visit(chunk.moments, number);
    }
  }

  // --- calls

  callsChunk(number, isOptional) {
    return this.chunks.get(this.path("calls", number), (buffer) => decodedCalls(buffer, this.agents), isOptional);
  }

  // First sending and last completion of each chunk of calls, (chunks, 2).
  callBounds() {
    return this.chunks.get(this.path("bounds", 0), asFloats);
  }

  // The chunks of calls that reach into a time span, as far as they are loaded.
  *callsBetween(from, to) {
    const bounds = this.callBounds();
    if (bounds === null) return;
    const found = [];
    for (let number = 0; 2 * number < bounds.length; number += 1) {
      if (bounds[2 * number] <= to && bounds[2 * number + 1] >= from) found.push(number);
    }
    const isOptional = this.chunks.areMany(found.length, CALLS_BYTES);
    for (const number of found) {
      const chunk = this.callsChunk(number, isOptional);
      if (chunk !== null) yield chunk;
    }
  }

  callText(index) {
    return this.chunks.load(this.path("call", index), asJSON);
  }

  mind(agent, step) {
    return this.chunks.load(this.path("mind", `${agent}-${step}`), asJSON);
  }

  // --- the world's clock

  hourOf(step) {
    return new Date(Date.parse(`${this.meta.start}Z`) + 1000 * step * this.meta.step_s);
  }
}

function decodedCalls(buffer, agents) {
  const count = new Int32Array(buffer, 0, 1)[0];
  let at = 4;
  const column = (Kind) => {
    const values = new Kind(buffer, at, count);
    at += 4 * count;
    return values;
  };
  const calls = { count };
  for (const name of ["index", "step", "agent", "function", "model", "instance"]) {
    calls[name] = column(Int32Array);
  }
  for (const name of ["sent", "started", "completed"]) calls[name] = column(Float32Array);
  for (const name of ["prompt", "output", "flags"]) calls[name] = column(Int32Array);
  // of a call that failed or was cut off the end is not recorded: it is a mark where it was known last
  const known = (row) => (Number.isNaN(calls.started[row]) ? calls.sent[row] : calls.started[row]);
  calls.ended = calls.completed.map((time, row) => (Number.isNaN(time) ? known(row) : time));
  // rows by agent, in order of sending: offsets[a] … offsets[a + 1] of `order`
  const offsets = new Int32Array(agents + 1);
  for (let row = 0; row < count; row += 1) offsets[calls.agent[row] + 1] += 1;
  for (let agent = 0; agent < agents; agent += 1) offsets[agent + 1] += offsets[agent];
  const next = offsets.slice();
  const order = new Int32Array(count);
  for (let row = 0; row < count; row += 1) order[next[calls.agent[row]]++] = row;
  return { ...calls, offsets, order };
}

export const FAILED = 1;
export const WASTED = 2;
