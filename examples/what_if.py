"""What if there were no idea of a lantern festival? A counterfactual on SmallVille, offline.

Run it from anywhere: python examples/what_if.py
"""

from pathlib import Path
from tempfile import mkdtemp

from metropolis import Client, Moment, Simulation, fork, make_scenario
from metropolis.llm.backends.scripted import Scripted
from metropolis.runtime.folder.comparison import compare

STEPS, AT = 900, 720  # from 6:00 to 8:30; the histories differ from 8:00
FOLDER = Path(mkdtemp())
AS_IT_WAS, WHAT_IF = FOLDER / "as_it_was", FOLDER / "without_festival"


def forget_the_festival(moment: Moment) -> None:
    """Remove the festival from the memory of Ines Duarte, whose idea it is."""
    moment.agents["Ines Duarte"].memory.forget(lambda node: "festival" in node.text)


def live(out: Path, resume: bool = False) -> list[str]:
    """Run to the end; prints the number of answers bought, returns the conversations since AT."""
    town = make_scenario("smallville")
    llm = Client(Scripted(town.author))
    talks = []
    run = Simulation(town.world, town.agents, llm, out=out, resume=resume)
    for record in run.steps(STEPS):
        for event in record.events:
            if event.kind == "conversation" and record.step >= AT:
                talks.append(f"{event.source} and {event['partner']}: {event['about']}")
    print(f"{out.name}: {llm.total.calls:,} answers bought, {llm.total.reused:,} reused")
    return talks


was = live(AS_IT_WAS)
town = make_scenario("smallville")
fork(
    AS_IT_WAS,
    town.world,
    town.agents,
    at=AT,
    out=WHAT_IF,
    edit=forget_the_festival,
    replay_llm=True,
)
then = live(WHAT_IF, resume=True)

found = compare(AS_IT_WAS, WHAT_IF)
lives = [name for name in found.since if name in {agent.name for agent in town.agents}]
print(f"Equal up to step {found.first}; by half past eight {len(lives)} of 25 lives differ:")
print(" ", ", ".join(lives))
print("Only as it was:", *sorted(set(was) - set(then)), sep="\n  ")
print("Only without the festival:", *sorted(set(then) - set(was)), sep="\n  ")
