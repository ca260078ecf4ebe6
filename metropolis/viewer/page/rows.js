// A row for each agent, with its name on the left, along an axis from 0 on: what Calls and Steps share.

import { Stage } from "./canvas.js";

const ROW_ZOOMED = 40; // pixels, at most

// A view has `top`, `bottom`: pixels between which the rows are; `right`: those beside them; `rowMin`, `rowMost`:
// pixels of a row unless one zooms; `end`: of the axis; `finest`: pixels of its unit, at most.
export class Rows {
  constructor(page, side, canvas, reactions) {
    this.page = page;
    this.side = side;
    this.stage = new Stage(canvas, {
      ...reactions,
      draw: (context) => {
        if (this.isFitted && this.fittedEnd !== this.end) this.fitAxis(); // the axis has grown
        this.draw(context);
      },
      onView: (isFirst, change) => {
        if (isFirst || (change && this.isFitted)) this.fit();
        this.clamp();
        if (!isFirst && !change) page.linkViews(this);
      },
    });
    this.stage.zoom = (factor, x, y) => this.zoom(factor, x, y);
  }

  get left() {
    return Math.min(150, 0.32 * this.stage.width);
  }

  // The scale at which the whole axis is shown.
  get least() {
    return (this.stage.width - this.left - this.right) / this.end;
  }

  // The height of a row if as many are shown as possible.
  get lowest() {
    return Math.min(this.rowMost, Math.max(this.rowMin, (this.bottom - this.top) / this.side.agents));
  }

  fit() {
    const { stage } = this;
    stage.scale[1] = this.lowest;
    stage.offset[1] = this.top;
    this.fitAxis();
  }

  fitAxis() {
    const { stage } = this;
    this.isFitted = true;
    this.fittedEnd = this.end;
    stage.scale[0] = this.least;
    stage.offset[0] = this.left;
    stage.isDirty = true;
  }

  // The axis zooms with the wheel; rows do while the pointer is on their names.
  zoom(factor, x = this.stage.width / 2, y = this.stage.height / 2) {
    const { offset, scale } = this.stage;
    const [axis, at, least, most] = x > this.left ? [0, x, this.least, Math.max(this.least, this.finest)] : [1, y, this.lowest, ROW_ZOOMED];
    const bounded = Math.min(most, Math.max(least, factor * scale[axis])) / scale[axis];
    offset[axis] = at - bounded * (at - offset[axis]);
    scale[axis] *= bounded;
    this.clamp();
    this.page.linkViews(this);
  }

  // Keep the whole of the axis and of the rows or less in view.
  clamp() {
    const { stage, side } = this;
    if (stage.scale[0] <= this.least * 1.0001) this.fitAxis();
    else this.isFitted = false;
    const end = stage.toX(this.end);
    if (stage.offset[0] > this.left) stage.offset[0] = this.left;
    else if (end < stage.width - this.right) stage.offset[0] += stage.width - this.right - end;
    stage.scale[1] = Math.max(this.lowest, Math.min(ROW_ZOOMED, stage.scale[1]));
    const height = stage.scale[1] * side.agents;
    stage.offset[1] = Math.min(this.top, Math.max(stage.offset[1], Math.min(this.top, this.bottom - height)));
    stage.isDirty = true;
  }

  // The row at a height, or null.
  rowAt(y) {
    const row = Math.floor(this.stage.fromY(y));
    return y > this.top && y < this.bottom && row >= 0 && row < this.side.agents ? row : null;
  }
}
