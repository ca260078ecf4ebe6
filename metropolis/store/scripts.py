"""The scripts of the Redis store, each atomic: common.lua, then its own file; scripts that give
clusters to workers include claiming.lua before it.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

import redis

from metropolis.addresses import shown
from metropolis.store.base import StoreError
from metropolis.store.connect import PERMISSIONS, Client, store_errors

_COMMAND = re.compile(r"\ball\('([A-Z]+)'|\bcall\('(?!XINFO)([A-Z]+)'")
"""A command in a script; XINFO, which only reads, is permitted by its subcommands."""
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


def check_permissions(client: Client, url: str) -> None:
    """Raise StoreError if the user may not use a command of the scripts.

    A script that the server stops half way would leave a part of its changes.
    """
    folder = files("metropolis.store") / "lua"
    texts = [file.read_text() for file in folder.iterdir()]
    commands = sorted({one or other for text in texts for one, other in _COMMAND.findall(text)})
    with store_errors(url):
        forbidden = call(client, "forbidden", "metropolis:", *commands)
    if forbidden is not None:
        raise StoreError(f"{shown(url)}: the user may not use {forbidden.decode()}; {PERMISSIONS}")
