"""How far does a whisper spread? A branch in which one resident has news, against a placebo.

Every seed has a run of its own up to WHISPER_AT; the same resident then thinks of TEXT, as news in
one branch and without the word "News" in the other. Offline; the author passes on what it takes
for news, so this measures how news travels in the town, not what a model would say.

Run it from anywhere: python examples/whisper_spread.py [SEEDS [HOURS [AGENTS [FIGURE.png]]]]. A
seed of 25 residents and six hours takes some 40 seconds of CPU.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from metropolis import Client, Simulation, Whisper, fork, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.progress import progress_bar
from metropolis.worlds.smallville.news import tells

TEXT, MARK = "A hot-air balloon lands on Mill Green on Sunday.", "balloon"
WHISPERS = {"whisper": f"News: {TEXT}", "placebo": TEXT}
WHISPER_AT, STEPS_PER_HOUR = 720, 360  # eight o'clock

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("seeds", type=int, nargs="?", default=10)
parser.add_argument("hours", type=float, nargs="?", default=6)
parser.add_argument("agents", type=int, nargs="?", default=25)
parser.add_argument("figure", type=Path, nargs="?")
options = parser.parse_args()
seeds, hours, agents, figure = options.seeds, options.hours, options.agents, options.figure
end = WHISPER_AT + round(hours * STEPS_PER_HOUR)


def live(out: Path, seed: int, steps: int, resume: bool = False) -> tuple[list[int], list[str]]:
    """Run to `steps`; returns how many know at each full hour after the whisper, and the talks."""
    town = make_scenario("smallville", agents=agents)
    llm = Client(Scripted(town.author))
    run = Simulation(town.world, town.agents, llm, out=out, seed=seed, resume=resume)
    knowing, talks, by_hour = {listener(seed)}, [], []
    for record in run.steps(steps):
        if record.step >= WHISPER_AT and (record.step - WHISPER_AT) % STEPS_PER_HOUR == 0:
            by_hour.append(len(knowing))
        for event in record.events:
            if event.kind == "conversation" and record.step >= WHISPER_AT:
                talks.append(f"{event.source} and {event['partner']}")
                if any(tells(text, MARK) for _, text in event["lines"]):
                    knowing |= {event.source, event["partner"]}
    return [*by_hour, len(knowing)], talks


def listener(seed: int) -> str:
    """Who hears the whisper."""
    names = [agent.name for agent in make_scenario("smallville", agents=agents).agents]
    return names[seed * 7 % len(names)]


known: dict[str, list[list[int]]] = {how: [] for how in WHISPERS}
talks: dict[str, list[int]] = {how: [] for how in WHISPERS}
with TemporaryDirectory() as name, progress_bar(seeds * 3, "runs") as (advance, _):
    for seed in range(seeds):
        origin = Path(name) / f"{seed}"
        live(origin, seed, WHISPER_AT)
        advance(1)
        for how, text in WHISPERS.items():
            town, branch = make_scenario("smallville", agents=agents), Path(name) / f"{seed}-{how}"
            edit = Whisper(listener(seed), text)
            fork(origin, town.world, town.agents, at=WHISPER_AT, out=branch, edit=edit)
            by_hour, held = live(branch, seed, end, resume=True)
            known[how].append(by_hour)
            talks[how].append(len(held))
            advance(1)

print(f"Residents of {agents} who know, {seeds} seeds: mean (least - most)")
print(f"{'hours since the whisper':<24}", *(f"{how:>18}" for how in WHISPERS))
for hour in range(len(known["whisper"][0])):
    counts = {how: [row[hour] for row in rows] for how, rows in known.items()}
    cells = [f"{np.mean(of):.1f} ({min(of)} - {max(of)})" for of in counts.values()]
    print(f"{min(hour, hours):<24g}", *(f"{cell:>18}" for cell in cells))
print(f"{'conversations':<24}", *(f"{np.mean(of):>18.1f}" for of in talks.values()))

if figure is not None:
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 3.5), layout="constrained")
    axes = drawing.add_subplot()
    for how, rows in known.items():
        at = np.minimum(np.arange(len(rows[0])), hours)
        axes.plot(at, np.mean(rows, axis=0), label=how)
        axes.fill_between(at, np.min(rows, axis=0), np.max(rows, axis=0), alpha=0.2)
    axes.set(
        xlabel="hours since the whisper", ylabel=f"residents of {agents} who know", ylim=(0, agents)
    )
    axes.legend()
    drawing.savefig(figure, dpi=150)
