"""Hostile answers of servers, drawn by seed: the bytes, and whether they still mean the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.llm.raw_server import Script

WRONG = "WRONG"
"""Part of every unsolicited answer."""
PAUSE_S = 0.02
HANG_S = 30.0
ENDLESS_BYTES = 4 << 20
DEEP, DIGITS = "@deep@", "@digits@"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 10**6, 1e12, 10**30, -(10**19), 0.5, 3.0, float("nan"), float("inf"),
    "", "7", "x" * 300, "\ud800", "\x00\x1b[2J", [], {}, [[]], {"a": {"b": []}}, DEEP, DIGITS,
)  # fmt: skip
COUNTS: tuple[Any, ...] = (None, True, -1, 0, 1, 10**6, 10**12, 10**30, 0.5, 3.0, "7", "x", [], {})
"""These are valid JSON, so the text must still be returned."""
STATUSES = (
    "200 OK", "200", "204 No Content", "206 Part", "301 Moved", "304 Not Modified", "400 Bad",
    "401 No", "404 Not Found", "408 Slow", "429 Too Many", "500 Oh", "503 Busy", "101 Switching",
    "099 What", "199 Interim", "600 What", "1000 What", "-1", "2OO OK", "",
)  # fmt: skip
RETRY_AFTERS = (
    "0", "1", "0.1", "-1", "1e12", "1e999", "nan", "inf", "soon", "", "9" * 400, "٣",
    "Wed, 21 Oct 2015 07:28:00", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359",
    "Mon, 01 Jan 0001 00:00:00 +2359", "Wed, 21 Oct 2015 07:28:00 +99999999", "Wed, , ,", "1, 2",
)  # fmt: skip
HEADERS = (
    "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999",
    "Content-Length: 0x10", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: identity", "Content-Encoding: gzip", "Content-Encoding: br",
    "Content-Type: text/html", "Content-Type: text/event-stream", "Connection: close",
    "Connection: upgrade", "Upgrade: websocket", "no colon", ": no name", "A: " + "a" * 9000,
    "A:\x00", " folded", "A: b\rC: d", "Location: /elsewhere", "X-Metropolis-Gateway: 1",
)  # fmt: skip
INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\n\r\n",
)


@dataclass
class Answer:
    """`exact`: it must be understood as `text`; otherwise an error is allowed, too."""

    text: str
    script: list[bytes | float | None] = field(default_factory=list)
    exact: bool = True
    sound: bool = True
    """Whether the end of the answer can be detected as HTTP."""
    kinds: list[str] = field(default_factory=list)
    """The changes made to it."""

    def play(self) -> Script:
        for item in self.script:
            if isinstance(item, bytes) and len(item) == ENDLESS_BYTES:
                yield from _endless(item)
            else:
                yield item


def _endless(item: bytes) -> Iterator[bytes]:
    for begin in range(0, len(item), 1 << 16):
        yield item[begin : begin + (1 << 16)]


def draw_answer(seed: int, route: str, *, stream: bool, marker: str) -> Answer:
    """The answer to a call of `route`: generate, chat or completions."""
    draw = Random(f"{seed} {route} {stream}")
    drawn = Answer(f"{marker} {draw.choice(TEXTS)}")
    bodies = events_of(drawn.text, route) if stream else [whole_of(drawn.text, route)]
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        _mutate_json(draw, drawn, bodies)
    written = [_written(body) for body in bodies]
    if stream:
        written = [b"data: " + body + b"\n\n" for body in written] + [b"data: [DONE]\n\n"]
    _frame(draw, drawn, _mutate_events(draw, drawn, written) if stream else written, stream)
    return drawn


def draw_page(seed: int, path: str) -> Answer:
    """The answer to a GET: models, server info or metrics."""
    draw = Random(f"{seed} {path}")
    drawn = Answer("tiny")
    if path.endswith("metrics"):
        value = draw.choice(("7", "1e999", "nan", "-1", "x", "", "9" * 400, DIGITS))
        names = ("sglang:num_retracted_requests_total", 'vllm:cache_config_info{block_size="16",')
        written = "".join(f"{name} {value}\n" for name in names).encode()
    else:
        owner = draw.choice(("sglang", "vllm", "stub"))
        page: dict[str, Any] = {"object": "list", "data": [{"id": "tiny", "owned_by": owner}]}
        if not path.endswith("models"):
            page = {"enable_priority_scheduling": True, "max_total_num_tokens": 4000}
        for _ in range(draw.choice((0, 1, 2))):
            _mutate_json(draw, drawn, [page])
        written = _written(page)
    _frame(draw, drawn, [written], stream=False)
    return drawn


TEXTS = ("", "a", "so it is", "¿sí? 二 \U0001f600", "data: [DONE]", "x" * 3000, '{"a": "\\n"}')


def whole_of(text: str, route: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 9, "completion_tokens": 1 + len(text) // 4}
    if route == "generate":
        return {"text": text, "meta_info": {"id": "x", "finish_reason": {"type": "stop"}, **usage}}
    content = {"text": text} if route == "completions" else {"message": {"content": text}}
    return {
        "id": "x",
        "choices": [{"index": 0, "finish_reason": "stop", **content}],
        "usage": usage,
    }


def events_of(text: str, route: str) -> list[dict[str, Any]]:
    whole, cut = whole_of(text, route), len(text) // 2
    if route == "generate":
        going = {**whole["meta_info"], "finish_reason": None}
        return [{"text": text[:cut], "meta_info": going}, whole]
    pieces = [(text[:cut], None), (text[cut:], None), ("", "stop")]
    parts = [
        {"text": p} if route == "completions" else {"delta": {"content": p}} for p, _ in pieces
    ]
    events: list[dict[str, Any]] = [
        {"id": "x", "choices": [{"index": 0, "finish_reason": finish, **one}]}
        for one, (_, finish) in zip(parts, pieces, strict=True)
    ]
    return [*events, {"id": "x", "choices": [], "usage": whole["usage"]}]


def _written(body: Any) -> bytes:
    text = json.dumps(body)
    text = text.replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000)
    return text.replace(f'"{DIGITS}"', "9" * 5000).encode()


def _mutate_json(draw: Random, drawn: Answer, bodies: list[Any]) -> None:
    """Change, in place, a count of the usage or anything else."""
    body = draw.choice(bodies)
    usage = body.get("usage", body.get("meta_info")) if isinstance(body, dict) else None
    if isinstance(usage, dict) and draw.random() < 0.6:
        drawn.kinds.append("usage")
        usage[draw.choice(("prompt_tokens", "completion_tokens"))] = draw.choice(COUNTS)
        return
    drawn.kinds.append("JSON")
    drawn.exact = False
    places: list[tuple[Any, Any]] = []
    inner = [body]
    while inner:
        one = inner.pop()
        keys = one.keys() if isinstance(one, dict) else range(len(one))
        places += [(one, key) for key in keys]
        inner += [one[key] for key in keys if isinstance(one[key], dict | list)]
    if places:
        one, key = draw.choice(places)
        if draw.random() < 0.2:
            del one[key]
        else:
            one[key] = draw.choice(VALUES)


def _mutate_events(draw: Random, drawn: Answer, events: list[bytes]) -> list[bytes]:
    kind = draw.choice(("", "", "", "", "comments", "order", "again", "lost", "event", "unended"))
    if not kind:
        return events
    drawn.kinds.append(f"events {kind}")
    drawn.exact &= kind == "comments"
    at = draw.randrange(len(events))
    if kind == "comments":
        return [b": ping\r\n\r\n", *(b"id: 7\n" + event for event in events)]
    if kind == "order":
        draw.shuffle(events)
    elif kind == "again":
        events.insert(at, events[draw.randrange(len(events))])
    elif kind == "lost":
        del events[at]
    elif kind == "event":
        other = (
            b"data: " + b"x" * 40_000,
            b"data: {}\n\n",
            b'data: {"error": "no"}\n\n',
            b"\xff\n\n",
        )
        events.insert(at, draw.choice(other))
    else:
        events[at] = events[at].rstrip()
    return events


def _frame(draw: Random, drawn: Answer, pieces: list[bytes], stream: bool) -> None:
    """The HTTP around the body, and its delivery."""
    status, headers, body = "200 OK", [], b"".join(pieces)
    if stream:
        headers.append("Content-Type: text/event-stream")
    if draw.random() < 0.15:
        status, drawn.exact, drawn.sound = draw.choice(STATUSES), False, False
        drawn.kinds.append(f"status {status}")
    if draw.random() < 0.1 or status.startswith(("429", "503")):
        headers.append(f"Retry-After: {draw.choice(RETRY_AFTERS)}")
    framing = draw.choice(("length", "chunked", "chunked", "close"))
    if framing == "length":
        headers.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        headers.append("Transfer-Encoding: chunked")
        body = _chunked(draw, drawn, body)
    if draw.random() < 0.15:
        header = draw.choice(HEADERS)
        drawn.exact = drawn.sound = False
        drawn.kinds.append(f"header {header[:30]}")
        headers.insert(draw.randrange(len(headers) + 1), header)
    version = "HTTP/1.1" if draw.random() < 0.95 else draw.choice(("HTTP/1.0", "HTTP/9.9", "ICY"))
    drawn.exact &= version == "HTTP/1.1"
    drawn.sound &= version == "HTTP/1.1"
    head = "\r\n".join([f"{version} {status}", *headers, "", ""]).encode()
    sent = head + body
    if draw.random() < 0.15:
        drawn.kinds.append("interim")
        sent = b"".join(draw.choices(INTERIM, k=draw.randint(1, 3))) + sent
        drawn.exact &= b"Length: 7" not in sent.split(head)[0]
        drawn.sound &= drawn.exact
    if draw.random() < 0.15:
        drawn.exact = drawn.sound = False
        drawn.kinds.append("bytes")
        sent = _mutate_bytes(draw, sent)
    _deliver(draw, drawn, sent, is_closing=framing == "close")


def _chunked(draw: Random, drawn: Answer, body: bytes) -> bytes:
    kind = draw.choice(("", "", "", "extension", "trailer", "size", "last"))
    drawn.exact &= kind not in ("size", "last")
    drawn.sound &= kind not in ("size", "last")
    drawn.kinds += [f"chunk {kind}"] * bool(kind)
    parts = list(_parts(draw, body))
    bad = draw.randrange(len(parts) + 1)
    chunks = b""
    for number, part in enumerate(parts):
        size = b"%x" % len(part)
        if kind == "size" and number == bad:
            size = draw.choice((b"", b"-1", b"ffffffffffffffffff", b"zz", b"%x" % (len(part) + 1)))
        chunks += size + (b";a=b" if kind == "extension" else b"") + b"\r\n" + part + b"\r\n"
    trailer = b"Status: 500\r\nConnection: a\r\n" if kind == "trailer" else b""
    return chunks if kind == "last" else chunks + b"0\r\n" + trailer + b"\r\n"


def _parts(draw: Random, data: bytes) -> Iterator[bytes]:
    while data:
        size = min(len(data), draw.choice((1, 7, 100, 5000, 50_000)))
        yield data[:size]
        data = data[size:]


def _mutate_bytes(draw: Random, sent: bytes) -> bytes:
    data = bytearray(sent)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(data) + 1)
        kind = draw.choice(("flip", "insert", "delete", "copy", "cut", "newlines"))
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == "insert":
            data[at:at] = draw.choice(
                (b"\r\n", b"\x00", b"\xff\xfe", b"\r\n\r\n", b"0\r\n\r\n", b"{")
            )
        elif kind == "delete":
            del data[at : at + draw.choice((1, 2, 30))]
        elif kind == "copy":
            data[at:at] = data[: draw.choice((5, 50, 500))]
        elif kind == "cut":
            del data[at:]
        elif kind == "newlines":
            data = bytearray(bytes(data).replace(b"\r\n", draw.choice((b"\n", b"\r"))))
    return bytes(data)


def _deliver(draw: Random, drawn: Answer, sent: bytes, *, is_closing: bool) -> None:
    kind = draw.choice(
        ("whole",) * 8 + ("split",) * 6 + ("second", "late") * 2
        + ("cut", "close", "drip", "hang", "endless")
    )  # fmt: skip
    drawn.kinds.append(kind)
    script = drawn.script
    second = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
    wrong = _written(whole_of(WRONG, draw.choice(("generate", "chat", "completions"))))
    if kind == "split":
        script += [one for part in _parts(draw, sent) for one in (part, 0.0)]
    elif kind in ("second", "late") and drawn.sound and not is_closing:
        other = draw.choice((second % (len(wrong), wrong), b"x", INTERIM[0], wrong))
        script += [sent + other] if kind == "second" else [sent, PAUSE_S, other]
    elif kind == "cut":
        drawn.exact = False
        script += [sent[: draw.randrange(len(sent) + 1)], None]
    elif kind == "drip":
        drawn.exact = False
        script += [sent[:-40]]
        for at in range(len(sent) - 40, len(sent)):
            script += [sent[at : at + 1], PAUSE_S]
    elif kind == "hang":
        drawn.exact = False
        script += [sent[: draw.randrange(len(sent) + 1)], HANG_S]
    elif kind == "endless":
        drawn.exact = False
        piece = draw.choice(
            (b"x", b"[", b"data: {", b"data: [1]\n", b"A: b\r\n", INTERIM[0], b"1\r\na\r\n")
        )
        begin = sent[: draw.randrange(len(sent) + 1)]
        script += [begin, (piece * (ENDLESS_BYTES // len(piece) + 1))[:ENDLESS_BYTES], None]
    else:
        script.append(sent)
        is_closing |= kind == "close"
    if is_closing:
        script.append(None)
