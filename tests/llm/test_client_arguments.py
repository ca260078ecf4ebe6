"""What a client is given is checked when it is made."""

from __future__ import annotations

import pytest

from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.usage import Prices
from metropolis.types import MetropolisError
from tests.llm.fakes import Fake


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0"),
        ({"max_cost": float("nan"), "prices": Prices(1, 1)}, "max_cost is nan"),
        ({"max_cost": 1.0}, "max_cost needs prices"),
        ({"concurrency": 1.5}, "concurrency is 1.5; it should be a whole number, at least 1"),
        ({"retries": None}, "retries is None; it should be a whole number, at least 0"),
        ({"max_tokens": "9"}, "max_tokens is '9'; it should be a whole number, at least 0"),
        ({"patience_s": "9"}, "patience_s is '9'; it should be a number, at least 0"),
        ({"seed": "x"}, "seed is 'x'; it should be a whole number from 0"),
        ({"prices": 3}, "prices is 3; it should be a metropolis.llm.usage.Prices, or None"),
        ({"models": 3}, "models is 3; it should be a metropolis.llm.model_choice.ModelChoice, or"),
        ({"journal": "j"}, "journal is 'j'; it should be a metropolis.llm.journal.Journal, or"),
        (
            {"backend": "http://ann:hunter2@h"},
            "the backend is a text; it should be a backend such as",
        ),
        (
            {"backend": None},
            "the backend is None; it should be a backend such as metropolis.llm.connect",
        ),
        ({"backend": Scripted}, "the backend is <class 'metropolis.llm.backends.scripted.Scripte"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        Client(**({"backend": Fake()} | options))  # type: ignore[arg-type]
