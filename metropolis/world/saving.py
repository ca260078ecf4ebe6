"""Agents' own state as JSON, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import msgspec
import numpy as np

from metropolis.types import MetropolisError
from metropolis.world.base import Agent


def save(agent: Agent) -> Any:
    """What `restore` needs, made of what JSON knows. Raises MetropolisError when it cannot be."""
    if hasattr(agent, "save"):
        return agent.save()
    try:
        return msgspec.to_builtins(
            {name: getattr(agent, name) for name in _fields(agent)},
            str_keys=True,
            enc_hook=_encode,
        )
    except (TypeError, ValueError) as error:
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be saved ({error}); its "
            "fields should be plain data, or it should define save() and restore(saved)"
        ) from error


def restore(agent: Agent, saved: Any) -> None:
    """Give `agent` the state that `save` returned. Raises MetropolisError when it does not fit."""
    if hasattr(agent, "restore"):
        agent.restore(saved)
        return
    hints = get_type_hints(type(agent))
    try:
        for name in _fields(agent):
            value = msgspec.convert(saved[name], hints[name], str_keys=True, dec_hook=_decode)
            setattr(agent, name, value)
    except (TypeError, KeyError, msgspec.ValidationError) as error:
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be restored from what was "
            f"saved ({error}); it should have the fields it had when it was saved"
        ) from error


def _fields(agent: Agent) -> list[str]:
    if not is_dataclass(agent):
        raise MetropolisError(
            f"the agent {agent.name!r} ({type(agent).__name__}) cannot be saved; make it a "
            "dataclass, or define save() and restore(saved)"
        )
    return [field.name for field in fields(agent) if not field.name.startswith("_")]


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not plain data")


def _decode(kind: Any, value: Any) -> Any:
    if getattr(kind, "__origin__", kind) is np.ndarray:
        element = kind.__args__[1].__args__[0] if hasattr(kind, "__args__") else None
        return np.array(value, element)
    raise TypeError(f"{kind} is not plain data")
