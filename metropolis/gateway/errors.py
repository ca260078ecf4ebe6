"""Errors of the gateway that several of its parts raise."""

from __future__ import annotations

from metropolis.llm.base import UnavailableError


class EngineLostError(UnavailableError):
    """The engine cannot be reached, or its answer broke off.

    `is_final`: the answer exceeded the limits, and another engine's answer would, too.
    """

    def __init__(self, sentence: str, *, is_final: bool = False) -> None:
        super().__init__(sentence)
        self.is_final = is_final
