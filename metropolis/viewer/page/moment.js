// The state of a side at the page's moment: who is at which step, who runs, who waits for whom.

const RUNNING = 0;
export const WAITING = 1;
export const FINISHED = 2;

const ROUND = [1, 1.5, 2, 3, 5, 7.5, 10, 15];

// Arrays over the agents; `update` fills them for a time or a step.
export class Moment {
  constructor(side) {
    this.side = side;
    const { agents } = side;
    this.steps = new Int32Array(agents);
    this.status = new Uint8Array(agents);
    this.blockedBy = new Int32Array(agents).fill(-1);
    this.cluster = new Int32Array(agents).fill(-1);
    this.positions = new Float32Array(2 * agents);
    this.isKnown = new Uint8Array(agents);
    this.floor = 0;
    this.front = 0;
    this.basis = "step";
    this.at = 0;
  }

  get lead() {
    return this.front - this.floor;
  }

  update(basis, at) {
    this.basis = basis;
    this.at = at;
    if (basis === "time") this.updateByTime(at);
    else this.updateByStep(at);
  }

  updateByTime(time) {
    const { side, steps } = this;
    const target = side.meta.target ?? side.meta.steps;
    this.floor = side.stepsAt(time, steps);
    this.front = 0;
    for (let agent = 0; agent < side.agents; agent += 1) {
      const step = steps[agent];
      if (step > this.front) this.front = step;
      this.isKnown[agent] = side.position(agent, step, this.positions, 2 * agent) ? 1 : 0;
      this.blockedBy[agent] = -1;
      this.cluster[agent] = -1;
      if (step >= target) {
        this.status[agent] = FINISHED;
        continue;
      }
      const execution = side.execution(agent, step);
      // a row that is not recorded yet has neither a beginning nor a blocker: its agent runs
      const isRecorded = execution !== null && (execution.blockedBy >= 0 || !Number.isNaN(execution.dispatched));
      const waits = isRecorded && !(execution.dispatched <= time);
      this.status[agent] = waits ? WAITING : RUNNING;
      if (execution === null) continue;
      if (waits) this.blockedBy[agent] = execution.blockedBy;
      else this.cluster[agent] = execution.cluster;
    }
  }

  updateByStep(at) {
    const { side } = this;
    const step = Math.min(Math.floor(at), side.meta.steps);
    const share = Math.min(1, at - step);
    const next = [0, 0];
    this.floor = this.front = step;
    this.steps.fill(step);
    this.status.fill(RUNNING);
    this.blockedBy.fill(-1);
    for (let agent = 0; agent < side.agents; agent += 1) {
      const { positions } = this;
      this.isKnown[agent] = side.position(agent, step, positions, 2 * agent) ? 1 : 0;
      this.cluster[agent] = side.execution(agent, step)?.cluster ?? -1;
      if (!share || side.meta.graph || !side.position(agent, step + 1, next)) continue;
      const [dx, dy] = [next[0] - positions[2 * agent], next[1] - positions[2 * agent + 1]];
      if (Math.abs(dx) + Math.abs(dy) > 4) continue; // a leap, not a walk
      positions[2 * agent] += share * dx;
      positions[2 * agent + 1] += share * dy;
    }
  }

  // The agents that run in the same cluster as this one, without it.
  coupled(agent) {
    const own = this.cluster[agent];
    const found = [];
    if (own < 0) return found;
    for (let other = 0; other < this.side.agents; other += 1) {
      const same = this.cluster[other] === own && this.steps[other] === this.steps[agent];
      if (other !== agent && same) found.push(other);
    }
    return found;
  }
}

// The upper end of the scale of leads: round, and never smaller than before.
export class LeadScale {
  constructor() {
    this.most = 10;
  }

  include(lead) {
    while (this.most < lead) {
      const power = 10 ** Math.floor(Math.log10(this.most) + 1e-9);
      const next = ROUND.find((each) => each * power > this.most * 1.01);
      this.most = next * power;
    }
    return this.most;
  }

  share(lead) {
    return lead / this.most;
  }
}
