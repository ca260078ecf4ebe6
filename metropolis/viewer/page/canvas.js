// A canvas that fits its element, with pan and zoom by pointer, wheel, pinch and keys.

export class Stage {
  // `draw(context, stage)` draws in CSS pixels; `onTap(x, y)`, `onHover(x, y)` get those of the element;
  // `onView(isFirst, change)` is called when what is in view changes; `change`: of the size, if that did.
  constructor(element, { draw, onTap, onHover, onLeave, onView }) {
    this.canvas = element;
    this.context = element.getContext("2d");
    this.drawing = draw;
    this.onView = onView ?? (() => {});
    this.offset = [0, 0];
    this.scale = [1, 1];
    this.fitted = 1; // the scale at which everything is shown
    this.width = this.height = 0;
    this.pointers = new Map();
    this.isDirty = true;
    new ResizeObserver(() => this.resize()).observe(element);
    this.listen(onTap ?? (() => {}), onHover ?? (() => {}), onLeave ?? (() => {}));
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const isFirst = this.width === 0;
    const change = [width - this.width, height - this.height];
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.isDirty = true;
    this.onView(isFirst, isFirst ? null : change);
  }

  draw() {
    if (!this.isDirty || !this.width) return;
    this.isDirty = false;
    this.context.clearRect(0, 0, this.width, this.height);
    this.drawing(this.context, this);
  }

  // Coordinates of the content to pixels, and back.
  toX(x) {
    return this.offset[0] + this.scale[0] * x;
  }

  toY(y) {
    return this.offset[1] + this.scale[1] * y;
  }

  fromX(x) {
    return (x - this.offset[0]) / this.scale[0];
  }

  fromY(y) {
    return (y - this.offset[1]) / this.scale[1];
  }

  // Show the rectangle of content, as large as possible; `equally`: the same scale in both directions.
  fit(x0, y0, x1, y1, equally = true, margin = 12) {
    let sx = (this.width - 2 * margin) / Math.max(1e-9, x1 - x0);
    let sy = (this.height - 2 * margin) / Math.max(1e-9, y1 - y0);
    if (equally) sx = sy = Math.max(1e-6, Math.min(sx, sy));
    this.scale = [sx, sy];
    this.fitted = sx;
    this.offset = [
      (this.width - sx * (x1 + x0)) / 2,
      (this.height - sy * (y1 + y0)) / 2,
    ];
    this.isDirty = true;
  }

  // From a small picture of everything to a few tiles.
  zoom(by, x = this.width / 2, y = this.height / 2) {
    const [least, most] = [this.fitted / 8, 64 * Math.max(1, this.fitted)];
    const factor = Math.min(most, Math.max(least, by * this.scale[0])) / this.scale[0];
    for (const [axis, at] of [[0, x], [1, y]]) {
      this.offset[axis] = at - factor * (at - this.offset[axis]);
      this.scale[axis] *= factor;
    }
    this.isDirty = true;
    this.onView(false, null);
  }

  pan(dx, dy) {
    this.offset[0] += dx;
    this.offset[1] += dy;
    this.isDirty = true;
    this.onView(false, null);
  }

  listen(onTap, onHover, onLeave) {
    const { canvas, pointers } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let travelled = 0;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      travelled = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      const before = pointers.get(event.pointerId);
      if (before === undefined) {
        onHover(...now);
        return;
      }
      const others = [...pointers].filter(([id]) => id !== event.pointerId);
      if (others.length === 1) {
        const other = others[0][1];
        const distance = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
        this.zoom(distance(now) / distance(before), ...other);
      } else if (others.length === 0) {
        travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
        if (travelled > 3) this.pan(now[0] - before[0], now[1] - before[1]);
      }
      pointers.set(event.pointerId, now);
    });
    const end = (event) => {
      const known = pointers.delete(event.pointerId);
      if (known && event.type === "pointerup" && travelled <= 3 && !pointers.size) onTap(...place(event));
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", onLeave);
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        const step = event.deltaMode === 1 ? 30 : 1;
        if (event.shiftKey) this.pan(-event.deltaY * step, 0);
        else this.zoom(Math.exp((-event.deltaY * step) / 400), ...place(event));
      },
      { passive: false },
    );
  }
}

// Text that fits into a width, cut with an ellipsis.
export function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const letters = [...text];
  let low = 0;
  let high = letters.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${letters.slice(0, middle).join("")}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${letters.slice(0, low).join("")}…` : "";
}

// Lines of at most `width`, and at most `most` of them.
export function wrapped(context, text, width, most) {
  const lines = [];
  let line = "";
  for (const word of text.split(/\s+/u)) {
    const longer = line ? `${line} ${word}` : word;
    if (context.measureText(longer).width <= width) {
      line = longer;
      continue;
    }
    if (line) lines.push(line);
    line = word;
    if (lines.length === most) break;
  }
  if (lines.length < most && line) lines.push(line);
  else if (lines.length === most) {
    let last = lines[most - 1];
    while (last.includes(" ") && context.measureText(`${last} …`).width > width) last = last.slice(0, last.lastIndexOf(" "));
    lines[most - 1] = `${last} …`;
  }
  return lines.map((each) => fitted(context, each, width));
}

// Text on a halo, so that it is readable on walls and lines.
export function outlined(context, text, x, y, halo) {
  context.strokeStyle = halo;
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.fillText(text, x, y);
}

// The rectangles that labels have taken: later ones that overlap them are moved or left out.
export class Taken {
  constructor() {
    this.boxes = [];
  }

  isFree(left, top, width, height) {
    return !this.boxes.some(([l, t, w, h]) => left < l + w && l < left + width && top < t + h && t < top + height);
  }

  take(left, top, width, height) {
    this.boxes.push([left, top, width, height]);
  }
}

export function arrow(context, [x0, y0], [x1, y1], gap) {
  const length = Math.hypot(x1 - x0, y1 - y0);
  if (length < 2 * gap) return;
  const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
  const [ax, ay, bx, by] = [x0 + gap * ux, y0 + gap * uy, x1 - gap * ux, y1 - gap * uy];
  context.beginPath();
  context.moveTo(ax, ay);
  context.lineTo(bx, by);
  context.stroke();
  context.beginPath();
  context.moveTo(bx, by);
  context.lineTo(bx - 7 * ux - 3.5 * uy, by - 7 * uy + 3.5 * ux);
  context.lineTo(bx - 7 * ux + 3.5 * uy, by - 7 * uy - 3.5 * ux);
  context.fill();
}

export function rounded(context, x, y, width, height, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

// Round numbers for an axis from `low` to `high`, about `count` of them.
export function ticks(low, high, count) {
  const span = Math.max(1e-9, high - low);
  const raw = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return { step, found };
}
