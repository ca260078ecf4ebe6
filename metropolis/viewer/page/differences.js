// How a run and its branch differ: by what agents do, say and think, step by step.

// Fills `page.differences`: {first, list: [{step, agent, here, there}], isComplete}.
export async function compare(page) {
  const [one, other] = page.sides;
  const found = (page.differences = { first: null, list: [], isComplete: false });
  const from = one.meta.forked?.step ?? other.meta.forked?.step ?? 0;
  const numberOf = new Map(other.meta.agents.map((name, agent) => [name, agent]));
  const steps = Math.min(one.meta.steps, other.meta.steps);
  const byStep = new Map(); // "step agent" -> {here, there}
  const read = async (side, field, agentOf) => {
    await side.scanMoments(
      (moments) => {
        for (const [step, agent, kind, text] of moments) {
          const known = agentOf(agent);
          if (step < from || step >= steps || known === undefined) continue;
          const key = `${step} ${known}`;
          const each = byStep.get(key) ?? { step, agent: known, here: "", there: "" };
          each[field] += `${each[field] ? " · " : ""}${kind === "does" ? "" : `${kind} `}${text}`;
          byStep.set(key, each);
        }
      },
      () => false,
    );
  };
  const names = new Map([...numberOf].map(([name, agent]) => [agent, one.meta.agents.indexOf(name)]));
  await read(one, "here", (agent) => agent);
  await read(other, "there", (agent) => (names.get(agent) < 0 ? undefined : names.get(agent)));
  const differing = [...byStep.values()].filter(({ here, there }) => here !== there);
  differing.sort((a, b) => a.step - b.step || a.agent - b.agent);
  found.list = differing;
  found.first = differing.length ? differing[0].step : null;
  found.isComplete = true;
  const at = [new Float32Array(2), new Float32Array(2)];
  page.differs = (agent, moment) => {
    const twin = numberOf.get(one.meta.agents[agent]);
    const step = moment.steps[agent];
    if (twin === undefined || step < from) return false;
    if (!one.position(agent, step, at[0]) || !other.position(twin, step, at[1])) return false;
    if (at[0][0] !== at[1][0] || at[0][1] !== at[1][1]) return true;
    return (one.doing(agent, step)?.label ?? "") !== (other.doing(twin, step)?.label ?? "");
  };
  page.panel.update();
  page.invalidate();
}
