// Places for the nodes of a graph: springs (Fruchterman and Reingold 1991), always the same ones.

const SPRINGS_MAX = 400;
const ROUNDS = 120;

// [x, y] of each node, within -1 … 1. `edges`: [[a, b], …].
export function layoutOf(nodes, edges) {
  const at = new Float32Array(2 * nodes);
  for (let node = 0; node < nodes; node += 1) {
    const angle = node * 2.399963; // the golden angle spreads them over a disc
    const radius = Math.sqrt((node + 0.5) / nodes);
    at[2 * node] = radius * Math.cos(angle);
    at[2 * node + 1] = radius * Math.sin(angle);
  }
  if (nodes <= SPRINGS_MAX) relax(nodes, edges, at);
  let most = 1e-6;
  for (const value of at) most = Math.max(most, Math.abs(value));
  for (let place = 0; place < at.length; place += 1) at[place] /= most;
  return at;
}

function relax(nodes, edges, at) {
  const ideal = Math.sqrt(4 / nodes);
  const force = new Float32Array(2 * nodes);
  for (let number = 0; number < ROUNDS; number += 1) {
    const heat = 0.1 * (1 - number / ROUNDS);
    force.fill(0);
    for (let a = 0; a < nodes; a += 1) {
      for (let b = a + 1; b < nodes; b += 1) {
        push(at, force, a, b, (distance) => (ideal * ideal) / distance);
      }
    }
    for (const [a, b] of edges) push(at, force, a, b, (distance) => (-distance * distance) / ideal);
    for (let node = 0; node < nodes; node += 1) {
      const [fx, fy] = [force[2 * node], force[2 * node + 1]];
      const length = Math.hypot(fx, fy) || 1;
      at[2 * node] += (fx / length) * Math.min(length, heat);
      at[2 * node + 1] += (fy / length) * Math.min(length, heat);
    }
  }
}

function push(at, force, a, b, strength) {
  const [dx, dy] = [at[2 * a] - at[2 * b], at[2 * a + 1] - at[2 * b + 1]];
  const distance = Math.max(1e-3, Math.hypot(dx, dy));
  const by = strength(distance) / distance;
  force[2 * a] += by * dx;
  force[2 * a + 1] += by * dy;
  force[2 * b] -= by * dx;
  force[2 * b + 1] -= by * dy;
}
