"""Hostile HTTP requests for fuzzing, drawn from a seed."""

from __future__ import annotations

import gzip
import json
import zlib
from functools import partial
from random import Random
from typing import Any

SECRET = "sk-secret-7f3a9c51e0d24b68"
"""Occurs in headers and query strings; no answer may contain it."""
METHODS = ("POST",) * 12 + (
    "GET",
    "PUT",
    "OPTIONS",
    "DELETE",
    "CONNECT",
    "PRI",
    "post",
    "",
    "\x16\x03",
)
PATHS = ("/v1/chat/completions",) * 6 + ("/v1/completions",) * 4 + (
    "/v1/responses", "/v1/messages", "/generate", "/v1/embeddings", "/v1/responses/x", "/tokenize",
    "/v1/models/tiny", "/v1/models/\xff", "/get_server_info",
    "/v1/models", "/health", "/metrics", "/", "*", "//v1/completions", "/v1/../v1/completions",
    "http://evil.example/v1/completions", "evil.example:443", "/v1/completions%00", "/%ff%fe",
    "/v1/chat%2Fcompletions", "/\x80", "/" + "a" * 9000, "/v1/completions#f", "",
)  # fmt: skip
VERSIONS = ("HTTP/1.1",) * 12 + ("HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 x", "http/1.1", "")
HOSTS = ("localhost",) * 12 + (
    "127.0.0.1:1",
    "[::1]",
    "evil.example",
    "[::1",
    "a b",
    "\xff",
    "",
    "@",
)
HEADERS = (
    ("X-Metropolis-Step", ("1", "-1", "9" * 400, "x", "１", "\xff")),
    ("X-Metropolis-Program", ("p", " p ", "\xe9", "a" * 300, "a\tb", "\x00", "🦉")),
    ("X-Metropolis-Function", ("plan", "other", "é", "\x7f", '"\\', "a" * 200)),
    ("X-Metropolis-Upstream", ("plan", "\xa0")),
    ("X-Metropolis-Stages-Left", ("3", "1e9", "")),
    ("X-Metropolis-End", ("true", "no", "", "\x01")),
    ("X-Metropolis-", ("", "a")),
    ("Authorization", (f"Bearer {SECRET}", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}\x00")),
    ("x-api-key", (SECRET, f"{SECRET}\xff")),
    ("api-key", (SECRET,)),
    ("Cookie", (f"key={SECRET}",)),
    ("Origin", ("https://evil.example", "null", "https://chat.example", "\xff")),
    ("Access-Control-Request-Method", ("POST", "\xff")),
    ("Access-Control-Request-Headers", ("authorization", "\xff", "a" * 5000)),
    ("Expect", ("100-continue", "wonders")),
    ("Connection", ("close", "keep-alive", "upgrade", "content-length", "X-Metropolis-Step, \xff")),
    ("Upgrade", ("websocket", "h2c", "TLS/1.0")),
    ("Content-Encoding", ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x")),
    ("Content-Type", ("application/json", "text/plain", "multipart/form-data", "\xff")),
    ("Accept-Encoding", ("gzip",)),
    ("TE", ("trailers",)),
    ("Trailer", ("Authorization",)),
    ("Host", ("localhost", "evil.example")),
    ("X-Long", ("a" * 8100, "a" * 9000)),
    ("Bad Name", ("a",)),
    ("Bad\x00Name", ("a",)),
    ("", ("a",)),
    ("Folded", ("a\r\n b", "a\n b", "a\r b")),
    ("X-Injected", ("a\r\nX-Metropolis-End: true", "a\nContent-Length: 0")),
)  # fmt: skip
LENGTHS = (
    "-1",
    "+5",
    "0x10",
    "5, 5",
    "5,6",
    "1e3",
    "",
    " ",
    "99999999999999999999",
    "16777217",
    "٣",
    "5 5",
)
ENCODINGS = ("chunked", "Chunked", "chunked, identity", "identity", "gzip, chunked", "xchunked",
             "chunked\x0b", "\tchunked", "chunked, chunked", "")  # fmt: skip
CHUNK_SIZES = ("-1", "0x5", "FFFFFFFFFFFFFFFF", "g", " 5", "5 ", "5;a=b", "5\n", "", "00000000005")
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 10**30, "", "a", "\x00", "\ud800", "🦉", [], {}, [None], [[]],
    {"a": 1},
    ["a", "b"], [1, 2, 3], {"role": "user"}, {"content": None}, "a" * 3000, list(range(300)),
)  # fmt: skip
FIELDS = ("model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "stop",
          "user", "tools", "temperature", "seed", "logprobs", "response_format", "priority", "rid",
          "content", "role", "tool_calls", "include_usage", "echo", "max_completion_tokens",
          "é")  # fmt: skip
TOKENS = (b"\r\n", b"\n", b"\r", b"\x00", b"\xff", b" ", b"\t", b":", b"\r\n\r\n", b"0\r\n\r\n",
          b"\x85", b"\x0b",
          b"HTTP/1.1", b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"{", b"[" * 70, b'"',
          f"Authorization: Bearer {SECRET}\r\n".encode())  # fmt: skip


def hostile_request(draw: Random, key: str) -> bytes:
    """Return the data to send on one connection; requests may contain the valid `key`."""
    sent = _request(draw, key)
    while draw.random() < 0.15:
        sent += _request(draw, key)
    if draw.random() < 0.4:
        for _ in range(draw.choice((1, 1, 2, 5))):
            sent = _mutated(draw, sent)
    return sent


def hostile_body(draw: Random) -> bytes:
    """Return a request's body, mostly a JSON object with valid fields."""
    kind = draw.random()
    if kind < 0.05:
        return draw.randbytes(draw.choice((1, 100, 5000)))
    if kind < 0.1:
        depth = draw.choice((30, 70, 2000, 100_000))
        opening, closing = draw.choice((("[", "]"), ('{"content":', "}"), ('[{"a":', "}]")))
        return f'{{"messages": {opening * depth}1{closing * depth}}}'.encode()
    if kind < 0.14:
        return draw.choice((b"", b"{", b"[]", b"1", b"null", b'{"a": NaN}', b"\xef\xbb\xbf{}",
                            b'{"prompt": "\\ud800"}', b'{"prompt": "\xff"}', b"{} {}",
                            b'{"a":1e999}', b'{"prompt": [' + b"1," * 2000 + b"1]}"))  # fmt: skip
    body: dict[str, Any] = {"model": "tiny"}
    if draw.random() < 0.6:
        body["messages"] = [{"role": "user", "content": "why"}] * draw.choice((1, 1, 2, 40))
    else:
        body |= {"prompt": "why", "max_tokens": 3}
    if draw.random() < 0.3:
        body["stream"] = True
    while draw.random() < 0.6:
        body[draw.choice(FIELDS)] = _value(draw)
    return json.dumps(body, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass")


def _value(draw: Random, depth: int = 0) -> Any:
    if depth < 4 and draw.random() < 0.3:
        inner = [_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        return inner if draw.random() < 0.5 else dict(zip(draw.choices(FIELDS, k=4), inner))  # noqa: B905
    return draw.choice(VALUES)


def _request(draw: Random, key: str) -> bytes:
    path = draw.choice(PATHS)
    if draw.random() < 0.2:
        path += draw.choice((f"?api_key={SECRET}", f"?key={SECRET}&b=\xff", "?" + "a" * 4000))
    lines = [f"{draw.choice(METHODS)} {path} {draw.choice(VERSIONS)}"]
    if draw.random() < 0.97:
        lines.append(f"Host: {draw.choice(HOSTS)}")
    if draw.random() < 0.7:
        lines.append(f"Authorization: Bearer {key}")
    while draw.random() < 0.5:
        name, values = draw.choice(HEADERS)
        lines.append(f"{name}{draw.choice((':', ':', ': ', ' : '))}{draw.choice(values)}")
    if draw.random() < 0.02:
        lines += [f"X-{n}: a" for n in range(200)]
    body = hostile_body(draw)
    if draw.random() < 0.05:
        body = draw.choice((partial(gzip.compress, mtime=0), zlib.compress))(body)
        lines.append(f"Content-Encoding: {draw.choice(('gzip', 'deflate', 'br'))}")
    framing = draw.random()
    if framing < 0.6:
        lines.append(f"Content-Length: {len(body)}")
    elif framing < 0.7:
        lines.append(f"Content-Length: {max(0, len(body) + draw.choice((-3, -1, 1, 40)))}")
    elif framing < 0.75:
        lines.append(f"Content-Length: {draw.choice(LENGTHS)}")
    if framing > 0.72:
        lines.append(f"Transfer-Encoding: {draw.choice(('chunked',) * 12 + ENCODINGS)}")
        body = _chunked(draw, body)
    draw.shuffle(head := lines[1:])
    end = draw.choice(("\r\n",) * 20 + ("\n", "\r"))
    return _encoded(end.join([lines[0], *head, "", ""]), draw) + body


def _chunked(draw: Random, body: bytes) -> bytes:
    pieces = []
    while body:
        length = draw.choice((1, 10, 1000, len(body)))
        size = f"{len(body[:length]):x}" if draw.random() < 0.97 else draw.choice(CHUNK_SIZES)
        pieces.append(_encoded(size, draw) + b"\r\n" + body[:length] + b"\r\n")
        body = body[length:]
        if len(pieces) > 40:
            break
    last = draw.choice(
        ("0\r\n\r\n",) * 10 + (f"0\r\nAuthorization: {SECRET}\r\n\r\n", "0\r\nbad\r\n\r\n", "0", "")
    )
    return b"".join(pieces) + last.encode()


def _encoded(text: str, draw: Random) -> bytes:
    """Encode characters beyond ASCII as Latin-1 or UTF-8."""
    try:
        return text.encode(draw.choice(("latin-1", "utf-8")))
    except UnicodeEncodeError:
        return text.encode()


def _mutated(draw: Random, sent: bytes) -> bytes:
    at = draw.randrange(len(sent) + 1)
    to = min(len(sent), at + draw.choice((1, 1, 2, 8, 100)))
    kind = draw.randrange(5)
    if kind == 0:
        return sent[:at] + sent[to:]
    if kind == 1:
        return sent[:at] + draw.choice(TOKENS) + sent[at:]
    if kind == 2:
        return sent[:at] + bytes((draw.randrange(256),)) + sent[at + 1 :]
    if kind == 3:
        return sent[:to] + sent[at:]
    return sent[:at]
