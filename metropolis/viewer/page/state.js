// What the page shows: one object, whose changes redraw what depends on it.

const MEMORY = "metropolis.viewer";

export class State {
  constructor() {
    this.view = "town"; // a key of `views` in main.js
    this.basis = "step"; // "time": who was where in their own time; "step": as lockstep would show it
    this.at = 0; // seconds of the run's clock, or a step
    this.isPlaying = false;
    this.speed = 1;
    this.side = 0; // of the selection
    this.selected = null; // an agent
    this.call = null; // the index of a call
    this.follows = false; // whether the map keeps the selected agent in the middle
    this.isLive = false; // whether the page stays at the end of a run that goes on
    this.listeners = new Set();
  }

  // Change fields, and tell everyone.
  set(changes) {
    Object.assign(this, changes);
    for (const listener of this.listeners) listener(changes);
  }

  onChange(listener) {
    this.listeners.add(listener);
  }
}

export function remembered(name, fallback) {
  try {
    return localStorage.getItem(`${MEMORY}.${name}`) ?? fallback;
  } catch {
    return fallback; // storage is not allowed
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`${MEMORY}.${name}`, value);
  } catch {
    // storage is not allowed: the choice holds until the page is closed
  }
}
