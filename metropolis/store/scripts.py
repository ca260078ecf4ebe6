"""The scripts of the Redis store, each atomic: common.lua, then its own file; scripts that give
clusters to workers include claiming.lua before it.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

import redis

from metropolis.store.connect import Client

_CLAIMING = "claim", "dispatch", "commit"


@cache
def script(name: str) -> tuple[bytes, str]:
    """The text of a script, and its SHA-1, by which the server knows it.

    A script begins with its flags. With flags, even an empty list, Redis rejects the whole script
    if memory is full, not only its second half.
    """
    folder = files("metropolis.store") / "lua"
    names = ["common", *(["claiming"] if name in _CLAIMING else []), name]
    *shared, own = ((folder / f"{file}.lua").read_text() for file in names)
    flags, own = own.split("\n", 1) if own.startswith("#!") else ("#!lua", own)
    text = "\n".join([flags, *shared, own]).encode()
    return text, hashlib.sha1(text, usedforsecurity=False).hexdigest()


def call(client: Client, name: str, prefix: str, *arguments: Any) -> Any:
    """Run a script; its text is sent only if the server does not know it."""
    text, digest = script(name)
    try:
        return client.execute_command("EVALSHA", digest, 1, prefix, *arguments)
    except redis.exceptions.NoScriptError:
        return client.execute_command("EVAL", text, 1, prefix, *arguments)
