"""An inner voice: an edit that gives one agent a thought."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import iscoroutine
from typing import Any

from metropolis.names import check_name, check_text, cut
from metropolis.runtime.reruns.edit_context import Moment
from metropolis.types import AgentError, MetropolisError
from metropolis.world.user_errors import describe_error, explain


@dataclass(frozen=True)
class Whisper:
    """The edit of a branch in which the agent `agent` takes `text` for a thought of its own.

    Raises MetropolisError on what is no text, and on an empty one.
    """

    agent: str
    text: str

    def __post_init__(self) -> None:
        for name, given in ("agent", self.agent), ("text", self.text):
            if not isinstance(given, str):
                raise MetropolisError(f"the whisper's {name} is {cut(given)}; it should be a text")
        object.__setattr__(self, "text", " ".join(self.text.split()))
        if not self.text:
            raise MetropolisError("the whisper is empty; write it in quotes after RUN")
        check_text("whisper", self.text)

    def __call__(self, moment: Moment) -> None:
        """Whisper. Raises MetropolisError if there is no such agent, or it hears no whispers."""
        check_name("agent", self.agent, list(moment.agents))
        agent: Any = moment.agents[self.agent]
        called = f"step {moment.step}, agent {self.agent!r}, in {type(agent).__name__}.whisper"
        try:
            returned = agent.whisper(self.text)
        except (Exception, SystemExit) as error:
            sentence = f"{called}: {describe_error(error, agent)}"
            if isinstance(error, SystemExit):
                raise AgentError(sentence) from error
            if not isinstance(error, MetropolisError):
                explain(error, sentence)
            raise
        if iscoroutine(returned):
            returned.close()
            raise MetropolisError(f"{called}: it is an async function; it should be a plain one")

    def __str__(self) -> str:
        return f"the whisper “{self.text}”"
