// Numbers, times and names as people read them.

const counts = new Intl.NumberFormat("en");
export const count = (value) => counts.format(value);

// Seconds of the run's clock.
export function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 1000) return `${value.toFixed(1)} s`;
  return `${count(Math.round(value))} s`;
}

export function ago(value) {
  if (!Number.isFinite(value)) return "–";
  const minutes = Math.floor(value / 60);
  if (minutes < 1) return `${Math.ceil(value)} s`;
  if (minutes < 90) return `${minutes} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

// The world's time of a step, as 07:05:10; with the day if the run has several.
export function worldTime(side, step) {
  const date = side.hourOf(step);
  if (Number.isNaN(date.getTime())) return `step ${count(step)}`;
  const time = date.toISOString().slice(11, 19);
  const days = Math.floor((date - side.hourOf(0)) / 86400000);
  const first = side.hourOf(0).toISOString().slice(0, 10);
  return days || date.toISOString().slice(0, 10) !== first ? `${date.toISOString().slice(0, 10)} ${time}` : time;
}

// Of Villager 12 its number, or V12 if another agent has this number; of other names the initials.
export function labelsOf(names) {
  const words = names.map((name) => name.split(/\s+/u).filter(Boolean));
  const uses = new Map();
  for (const own of words) uses.set(own.at(-1), (uses.get(own.at(-1)) ?? 0) + 1);
  return words.map((own) => {
    const last = own.at(-1) ?? "";
    const isNumber = /^\d{1,3}$/u.test(last);
    if (isNumber && uses.get(last) === 1) return last;
    const first = own.length > 1 ? [...own[0]][0] : "";
    return (first + (isNumber ? last : ([...last][0] ?? ""))).toUpperCase();
  });
}

const MODES = { versioned: "out of order", out_of_order: "out of order", conservative: "out of order, conservative", oracle_values: "oracle of values" };

export const modeName = (mode) => MODES[mode] ?? mode;

// The name of a side: a lane of a replay is named by its mode.
export const titleOf = (meta) => (meta.title === meta.mode ? modeName(meta.mode) : meta.title);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
