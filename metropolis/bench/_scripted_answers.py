"""Answers of a scenario's scripted author to requests that arrive over HTTP."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import msgspec

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.base import Completion, Message, Request
from metropolis.llm.placement import PREFIX
from metropolis.types import MetropolisError
from metropolis.world.scenario import Scenario

_HEADER = re.compile(rf"\r\n{PREFIX}(\w+): *([^\r\n]*)", re.IGNORECASE)


class ScriptedAnswers:
    """The author of a scenario.

    A request names its agent and function in the headers for gateways.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._author = Scripted(scenario.world.author)
        self._numbers = {agent.name: number for number, agent in enumerate(scenario.agents)}

    def answer(self, chat: dict[str, Any], headers: bytes) -> Completion:
        """The author's answer, as in a run without a server.

        Raises MetropolisError when the chat or its headers lack something.
        """
        read = _HEADER.findall(headers.decode())
        found = {name.lower(): unquote(value) for name, value in read}
        if not {"program", "function"} <= found.keys():
            raise MetropolisError(
                "a server with --scenario needs requests that come from `metropolis run` without a "
                f"gateway between, which forwards no header {PREFIX}Program"
            )
        try:
            program, _, step = found["program"].rpartition(" at ")
            request = Request(
                agent=self._numbers[program],
                step=int(step),
                function=found["function"],
                messages=msgspec.convert(chat["messages"], tuple[Message, ...]),
                max_tokens=int(chat["max_tokens"]),
                temperature=float(chat["temperature"]),
                stop=tuple(chat.get("stop", ())),
                seed=int(chat["seed"]),
                priority=0,
                program=program,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MetropolisError(
                "a server with --scenario needs requests of a run of this scenario, with as many "
                f"agents ({type(error).__name__}: {error})"
            ) from None
        return self._author.written(request)
