// The state in the fragment of the page's URL, beside the token: a reload, a copied URL and the back button show
// it again.

const STILL_MS = 300; // the URL is written once the state has not changed for so long: that costs milliseconds

export class Address {
  constructor(page, views) {
    this.page = page;
    this.views = views;
    this.timer = null;
    this.token = this.parts.get("token");
    addEventListener("popstate", () => this.read());
    page.state.onChange(() => this.write());
  }

  get parts() {
    return new URLSearchParams(location.hash.slice(1));
  }

  // The fragment for the state after some changes.
  of(changes = {}) {
    const { sides, state } = this.page;
    const { view, basis, at, side, selected, isLive } = { ...state, ...changes };
    const parts = {
      ...(this.token === null ? {} : { token: this.token }),
      view,
      ...(isLive ? {} : { by: basis, at: Number(at.toFixed(3)) }),
      ...(selected === null ? {} : { side, agent: sides[side].meta.agents[selected] }),
    };
    return `#${new URLSearchParams(parts)}`;
  }

  // Show what the URL says; parts that are unknown change nothing.
  read() {
    const { page, parts } = this;
    const side = page.sides[parts.get("side")]?.index ?? 0;
    const selected = page.sides[side].numbers.get(parts.get("agent")) ?? null;
    const view = this.views.includes(parts.get("view")) ? parts.get("view") : page.state.view;
    page.state.set({ view, side, selected, call: null });
    const [by, at] = [parts.get("by"), parseFloat(parts.get("at"))];
    if (Number.isFinite(at) && (by === "step" || (by === "time" && page.hasTimes))) {
      page.awaitsTimes = false;
      page.moveTo(by, at);
    }
    history.replaceState(null, "", this.of());
  }

  // With an entry of its own in the history for each view and agent.
  write() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const before = this.parts;
      const fragment = this.of();
      const after = new URLSearchParams(fragment.slice(1));
      const isElsewhere = ["view", "side", "agent"].some((name) => before.get(name) !== after.get(name));
      if (fragment !== location.hash) history[isElsewhere ? "pushState" : "replaceState"](null, "", fragment);
    }, STILL_MS);
  }
}
