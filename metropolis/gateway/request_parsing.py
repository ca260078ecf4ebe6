"""Requests of clients, decoded once: from HTTP, or from the fields that this process gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec

from metropolis.gateway.json_shape import check_shape
from metropolis.gateway.payload import Payload
from metropolis.gateway.prompt_pieces import (
    PIECES_MAX,
    Piece,
    characters_of,
    digest_of,
    piece_of,
    pieces_of_each,
)
from metropolis.gateway.resumable import ResumableRequest, resumable_request
from metropolis.llm.backends.http import NO_JSON
from metropolis.llm.placement import NAME_CHARACTERS_MAX, PREFIX, Placement, is_name
from metropolis.types import MetropolisError

TRUE, FALSE = ("1", "true", "yes"), ("0", "false", "no")
"""Values of the headers End and Speculative."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request that generates, as the gateway forwards it and as policies see it."""

    path: str
    """Its route, with a query if it has one."""
    model: str | None
    """The model that it names, or by which it is routed; None: any."""
    headers: Mapping[str, str]
    """Headers for the engine."""
    body: Payload
    tenant: str
    """The owner of its key; empty without keys."""
    program: str | None
    """None: the gateway infers it."""
    opening: bytes | None
    """Digest of the messages before the model's first, the same throughout a conversation."""
    is_continued: bool
    """It contains an earlier answer of the model."""
    function: str
    is_inferred: bool
    """The function was inferred (no header)."""
    upstream: str | None
    step: int
    stages_left: int | None
    is_last: bool
    """It ends its program."""
    speculative: bool
    """It may be sent in vain."""
    prompt_tokens: int
    """Approximately."""
    previous: str | None
    """The id of the response that it continues, which an engine stores."""
    prefix: tuple[Piece, ...]
    """The first pieces of its prompt."""
    resumable: ResumableRequest | None
    """How its answer can be resumed; None if it cannot."""


@dataclass(frozen=True, slots=True)
class Resuming:
    """Which answers the gateway resumes."""

    preempts: bool
    """Whether the policy preempts."""
    is_known: bool
    """Whether all engines are SGLang or vLLM."""


class _Body(msgspec.Struct):
    """Fields of chats, completions, responses, Anthropic's messages and SGLang's /generate."""

    model: Any = None
    messages: Any = None
    prompt: Any = None
    tools: Any = None
    user: Any = None
    input: Any = None
    instructions: Any = None
    previous_response_id: Any = None
    system: Any = None
    metadata: Any = None
    text: Any = None
    input_ids: Any = None

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The messages of a chat in any format, the system's first."""
        messages = self.messages if self.input is None else self.input
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        elif not isinstance(messages, list | tuple):
            messages = []
        turns = [turn for turn in messages if isinstance(turn, dict)]
        system = self.instructions or self.system
        return [{"role": "system", "content": system}, *turns] if turns and system else turns

    @property
    def plain(self) -> Any:
        """The prompt of a request that is no chat."""
        fields = self.prompt, self.text, self.input_ids, self.input
        return next((field for field in fields if field is not None), None)

    @property
    def owner(self) -> str | None:
        """The program that the body names as its user."""
        ids = self.metadata.get("user_id") if isinstance(self.metadata, dict) else None
        names = (name for name in (self.user, ids) if isinstance(name, str) and is_name(name))
        return next(names, None)


class _Promotion(msgspec.Struct):
    program: str


_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=float)
"""The hook accepts numbers beyond the range of floats, which concern the engine."""


def from_http(
    path: str, headers: Mapping[str, str], body: bytes, tenant: str, resuming: Resuming
) -> ClientRequest:
    """Parse a request; raises MetropolisError on a body that is no JSON object or is too costly to
    decode, and on an invalid header."""
    check_shape(body)
    try:
        if not body.isascii():
            body.decode()  # msgspec does not validate the bytes of all strings
        fields = _DECODER.decode(body)
        placement = _placement_in(headers)
        return _client_request(path, headers, body, fields, placement, tenant, resuming)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MetropolisError(f"the body is not a JSON object: {error}") from None
    except RecursionError:
        raise MetropolisError("the body is nested too deep; flatten it") from None


def program_of(name: str, tenant: str) -> str:
    """The program that `tenant` calls `name`."""
    return f"{tenant} {name}" if tenant else name


def promoted_in(body: bytes) -> str:
    """The program that the body of a promotion names; raises MetropolisError if it names none."""
    check_shape(body)
    try:
        program = msgspec.json.decode(body, type=_Promotion).program
        if not is_name(program):
            raise MetropolisError(
                f"program is {program[:20]!r}…; write a name of at most {NAME_CHARACTERS_MAX} "
                "printable characters"
            )
        return program
    except NO_JSON as error:
        raise MetropolisError(f'the body should be {{"program": a name}}: {error}') from None


def from_fields(
    path: str,
    headers: Mapping[str, str],
    fields: dict[str, Any],
    placement: Placement,
    resuming: Resuming,
) -> ClientRequest:
    """Describe a request of this process, whose body has the given `fields`."""
    return _client_request(path, headers, fields, fields, placement, "", resuming)


def _client_request(
    path: str,
    headers: Mapping[str, str],
    body: Payload,
    fields: dict[str, Any],
    placement: Placement,
    tenant: str,
    resuming: Resuming,
) -> ClientRequest:
    content = msgspec.convert(fields, _Body)
    messages = content.turns
    turns = [_role(message) for message in messages]
    opening_turns = turns.index("assistant") if "assistant" in turns else len(turns)
    previous = content.previous_response_id
    parts = list(pieces_of_each(messages or [content.plain]))
    tools = content.tools
    tool_pieces = [piece_of(tools, characters_of(tools))] if tools else []
    pieces = [*tool_pieces, *chain.from_iterable(parts)]
    inferred = "chat" if messages else "completion"
    if turns and turns[0] in ("system", "developer"):  # it differs by agent
        inferred = f"system-{digest_of(parts[:1]).hex()[:8]}"
    program = placement.program or content.owner
    opening = digest_of(parts[:opening_turns]) + tenant.encode() if messages else None
    return ClientRequest(
        path=path,
        model=content.model if content.model and isinstance(content.model, str) else None,
        headers=headers,
        body=body,
        tenant=tenant,
        program=None if program is None else program_of(program, tenant),
        opening=opening,
        is_continued=opening_turns < len(turns),
        function=placement.function or inferred,
        is_inferred=placement.function is None,
        upstream=placement.upstream,
        step=placement.step,
        stages_left=placement.stages_left,
        is_last=placement.is_last,
        speculative=placement.speculative,
        prompt_tokens=max(1, sum(tokens for _, tokens in pieces)),
        previous=previous if isinstance(previous, str) else None,
        prefix=tuple(pieces[:PIECES_MAX]),
        resumable=resumable_request(
            path, body, fields, preempts=resuming.preempts, is_known=resuming.is_known
        ),
    )


def _placement_in(headers: Mapping[str, str]) -> Placement:
    return Placement(
        _name(headers, "Program"),
        _name(headers, "Function"),
        _name(headers, "Upstream"),
        _integer(headers, "Step", 0) or 0,
        _integer(headers, "Stages-Left", 1),
        _is_true(headers, "End"),
        _is_true(headers, "Speculative"),
    )


def _is_true(headers: Mapping[str, str], name: str) -> bool:
    value = (headers.get(PREFIX + name) or FALSE[0]).lower()
    if value not in TRUE + FALSE:
        raise MetropolisError(f"header {PREFIX}{name} is {value[:20]!r}; write true or false")
    return value in TRUE


def _role(turn: dict[str, Any]) -> Any:
    """Return the speaker; items of responses without a role are the model's or a tool's."""
    if "role" in turn:
        return turn["role"]
    kind = str(turn.get("type", ""))
    return "tool" if kind.endswith("_output") or kind == "item_reference" else "assistant"


def _name(headers: Mapping[str, str], name: str) -> str | None:
    value = headers.get(PREFIX + name)
    if not value:
        return None
    if not is_name(value):
        begin = value[:20]
        raise MetropolisError(
            f"header {PREFIX}{name} begins with {begin!r}; write a name of at most "
            f"{NAME_CHARACTERS_MAX} printable characters in UTF-8"
        )
    return value


def _integer(headers: Mapping[str, str], name: str, least: int) -> int | None:
    value = headers.get(PREFIX + name)
    if value is None:
        return None
    if not value.isdecimal() or len(value) > 15 or int(value) < least:
        begin = value[:20]
        raise MetropolisError(f"header {PREFIX}{name} is {begin!r}; write a number from {least} up")
    return int(value)
