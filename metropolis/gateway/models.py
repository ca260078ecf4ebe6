"""The models of a gateway's engines: the one that a request is routed by, and the list of all.

1. An engine serves the names that it listed when it was last probed, those of aliases and adapters
   included, and with SGLang also `NAME:ADAPTER`. One that lists none may serve any model.
2. Engines that are down keep their names: requests for these wait.
3. Requests that arrive before engines list their models keep their model: they go to the engines
   that turn out to serve it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import msgspec

from metropolis.gateway.engine_client import Reply
from metropolis.gateway.json_shape import check_shape
from metropolis.llm.backends.http import NO_JSON
from metropolis.names import shortened
from metropolis.scheduler.models import ServedModels
from metropolis.types import MetropolisError

SHOWN_MODELS = 8
NAME_CHARACTERS_MAX = 4096
"""Unlisted names are cut to this length, because policies and dispatchers keep them."""


class UnknownModelError(MetropolisError):
    """No engine serves the requested model."""


class _List(msgspec.Struct):
    data: list[dict[str, Any]]


class _Named(msgspec.Struct):
    model: Any = None


def routed_by(model: str | None, models: ServedModels, is_up: Sequence[bool]) -> str | None:
    """Return the name by which to choose an engine for a request for `model`; None: any engine.

    It is `model`, or that of its base; `is_up` is by engine. Raises UnknownModelError, and
    MetropolisError if no model is given and engines differ; messages do not repeat the name, which
    may have any length.
    """
    known = models.listed
    if model is None:
        if len({names for names in models.of if names is not None}) > 1:
            raise MetropolisError(
                f"the engines serve different models; give one in the field model: {_shown(known)}"
            )
        return None
    if model in known:
        return model
    base = model.rpartition(":")[0]
    if base in known:
        return base
    may_serve = (up and names is None for names, up in zip(models.of, is_up, strict=True))
    if not known or any(may_serve):
        return model[:NAME_CHARACTERS_MAX]
    raise unknown_model(known)


def unknown_model(known: Set[str]) -> UnknownModelError:
    """The error of a request whose model is none of the `known` ones."""
    return UnknownModelError(f"no engine serves the model; they serve {_shown(known)}")


def model_named_in(body: bytes) -> str | None:
    """Return the model that a body names; None if it names none, or is no JSON object.

    Raises MetropolisError on a body that is too costly to decode.
    """
    check_shape(body)
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except NO_JSON:
        return None
    return model if model and isinstance(model, str) else None


def list_of(replies: Sequence[Reply]) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return status, headers and body of the list of models, from the answers of all engines.

    It is the first engine's answer if no other engine lists more; an error if all are.
    """
    lists = []
    for reply in replies:
        models = _models_in(reply.whole) if reply.status == 200 else None
        if models is not None:
            lists.append((reply, models))
    first = lists[0][0] if lists else replies[0]
    names = [{str(model.get("id")) for model in models} for _, models in lists]
    if all(each <= names[0] for each in names):
        return first.status, first.headers, first.whole or b""
    union = {str(model.get("id")): model for _, models in reversed(lists) for model in models}
    content = {"object": "list", "data": [union[name] for name in sorted(union)]}
    return 200, [("content-type", "application/json")], msgspec.json.encode(content)


def model_in(listed: bytes, name: str) -> bytes:
    """Return the model `name` from a list of models; raises UnknownModelError."""
    models = _models_in(listed) or []
    found = next((model for model in models if model.get("id") == name), None)
    if found is None:
        known = _shown({str(model.get("id")) for model in models})
        raise UnknownModelError(f"there is no model {name!r}; the engines serve {known}")
    return msgspec.json.encode(found)


def _models_in(listed: bytes | None) -> list[dict[str, Any]] | None:
    try:
        return msgspec.json.decode(listed or b"", type=_List).data
    except NO_JSON:
        return None


def _shown(models: Set[str]) -> str:
    return shortened([*map(repr, sorted(models))], SHOWN_MODELS)
