// What the keys do; the dialog of index.html lists them.

import { byId } from "./elements.js";

const TYPED_INTO = 'input:not([type="range"], [type="checkbox"]), textarea, select';
const PRESSED = 'button, summary, a, input[type="checkbox"]'; // space and enter are theirs

export function listenToKeys(page, views) {
  addEventListener("keydown", (event) => {
    if (byId("keys").open) return;
    if (event.key === "Escape") {
      close(page);
      event.target.blur?.();
      return;
    }
    if (event.target.matches?.(TYPED_INTO) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " " && event.target.matches?.(PRESSED)) return;
    const action = actionsOf(page, Object.keys(views), event.shiftKey)[event.key];
    if (action === undefined) return;
    event.preventDefault();
    action();
  });
}

function close(page) {
  if (page.state.call !== null) page.state.set({ call: null });
  else page.select(page.state.side, null);
}

function actionsOf(page, views, isShifted) {
  const { state, transport } = page;
  const { agents } = page.sides[state.side];
  const step = (state.basis === "step" ? 1 : transport.end / 500) * (isShifted ? 10 : 1);
  const actions = {
    " ": () => transport.toggle(),
    ArrowLeft: () => page.moveTo(state.basis, state.at - step),
    ArrowRight: () => page.moveTo(state.basis, state.at + step),
    Home: () => page.moveTo(state.basis, 0),
    End: () => page.moveTo(state.basis, transport.end),
    ",": () => page.leap(-1),
    ".": () => page.leap(1),
    t: () => byId("by-time").disabled || page.setBasis(state.basis === "time" ? "step" : "time"),
    f: () => state.selected !== null && page.follow(),
    w: () => byId("waits").click(),
    0: () => page.refit(),
    "+": () => page.viewOn(state.side).stage.zoom(1.3),
    "-": () => page.viewOn(state.side).stage.zoom(1 / 1.3),
    "/": () => byId("search").focus(),
    "?": () => byId("keys").showModal(),
    n: () => page.select(state.side, ((state.selected ?? -1) + 1) % agents),
    N: () => page.select(state.side, ((state.selected ?? 0) + agents - 1) % agents),
  };
  views.forEach((name, at) => (actions[String(at + 1)] = () => state.set({ view: name })));
  return actions;
}
