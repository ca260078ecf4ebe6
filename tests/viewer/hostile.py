"""A world whose names and texts attack the page."""

from dataclasses import dataclass
from typing import Any

from metropolis import Agent, Appearance, Entity, Scenario, Transaction, View, World

TEXTS = (
    "<script>window.attacked = 1</script>",
    "<img src=x onerror='window.attacked = 1'>",
    "</script><script>window.attacked = 1</script><!--",
    "javascript:window.attacked=1",
    "'\"><svg/onload=window.attacked=1>",
    "&lt;b&gt; ${window.attacked = 1} {{constructor.constructor('window.attacked=1')()}}",
    "\u202eright to left\u202c, \x00 null, \ufffe, \u200d\u200d, a" + 80 * "\u0301",
    "👩‍👩‍👧‍👦" * 200,
    "no space " + "x" * 5000,
    "\n\r\n\t" * 50,
)
NAMES = [f"{text[:60]} {number}" for number, text in enumerate(TEXTS[:6])]
STEPS = 20


class Square(World):
    """A place where all hear all."""

    name = "square <b>bold</b>"
    perception_radius = 10
    max_velocity = 1
    appearance = Appearance(label="doing", speech={"shouts": "text"})

    def reset(self, *, seed: int, options: Any) -> list[Entity]:
        return [Entity(name, (2 * number, 0), "agent") for number, name in enumerate(NAMES)]

    def observe(self, view: View) -> Any:
        return None

    def resolve(self, cluster: Transaction) -> None:
        for member in cluster:
            text = member.action
            member.emit("shouts", text=text)
            member.emit(text[:30], text=text)
            member.write(doing=text, emoji=text[:40], place=text)


@dataclass
class Shouter(Agent):
    """Says one text after another."""

    name: str

    async def proceed(self, observation: Any, llm: Any) -> Any:
        text = TEXTS[self.step % len(TEXTS)]
        await llm.chat(f"say {text}", function=text[:30], max_tokens=8)
        return text


def author(request: Any, random: Any) -> str:
    """Answers in place of a model."""
    return TEXTS[random.randrange(len(TEXTS))]


def make(*, agents: int | None = None, seed: int = 0) -> Scenario:
    """Six of them."""
    return Scenario(Square(), [Shouter(name) for name in NAMES], author, steps=STEPS)
