// Very wide maps, like towns side by side, are shown in rows, cut where most walls are.

const WIDEST = 5; // width by height of a map in one row
const SHAPE = 1.5; // of the whole
const GAP = 3; // tiles between rows

export class Fold {
  constructor(map) {
    this.map = map;
    this.starts = map.width > WIDEST * map.height ? cuts(map) : [0];
    this.rows = this.starts.length;
    this.width = Math.max(...this.starts.map((_, row) => this.widthOf(row)));
    this.height = this.rows * map.height + (this.rows - 1) * GAP;
  }

  widthOf(row) {
    return (this.starts[row + 1] ?? this.map.width) - this.starts[row];
  }

  rowOf(x) {
    let row = this.rows - 1;
    while (row > 0 && x < this.starts[row]) row -= 1;
    return row;
  }

  // Where a point of the map is shown.
  x(x, row = this.rowOf(x)) {
    return x - this.starts[row];
  }

  y(y, row) {
    return y + row * (this.map.height + GAP);
  }
}

function cuts(map) {
  const rows = Math.round(Math.sqrt((SHAPE * map.width) / map.height) / SHAPE) || 1;
  const solid = new Int32Array(map.width + 1);
  for (const runs of map.walls) {
    let x = 0;
    runs.forEach((length, number) => {
      if (number % 2) for (let at = x; at < x + length; at += 1) solid[at] += 1;
      x += length;
    });
  }
  const starts = [0];
  const near = Math.floor(map.width / rows / 3);
  for (let row = 1; row < rows; row += 1) {
    const ideal = Math.round((row * map.width) / rows);
    let best = ideal;
    for (let x = ideal - near; x <= ideal + near; x += 1) {
      const isBetter = solid[x] > solid[best] || (solid[x] === solid[best] && Math.abs(x - ideal) < Math.abs(best - ideal));
      if (isBetter) best = x;
    }
    starts.push(best);
  }
  return starts;
}
