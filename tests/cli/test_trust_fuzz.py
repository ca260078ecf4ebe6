"""Hostile run.json and store.json: without trust nothing runs or connects; errors are one sentence.

Half of them have a valid checksum. The others count as damaged: trust does not help.

METROPOLIS_FUZZ_INPUTS=10000 pytest -m campaign tests/cli/test_trust_fuzz.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metropolis.cli.run_options import RunOptions, options_of
from metropolis.runtime.live.stored import MEMORY
from metropolis.types import MetropolisError
from tests.commands import Command
from tests.forgery import intact, with_checksum

SMALL, LARGE = 200, int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "10000"))
FILES = ("run.json", "store.json")
WATCHED = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "exec")
HOSTILE = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
Texts = dict[str, bytes | None]
"""Contents of the folder's files; None: no such file."""

_events: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is None or event not in WATCHED:
        return
    if event != "exec" or arguments[0].co_filename.startswith(str(Path.cwd())):
        _events.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_watch)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


@pytest.fixture
def donors(run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Texts]:
    """Return the files of two runs of this user in a store, and of a run of another user."""
    found = {}
    for name in ("mine", "other", "stranger"):
        with monkeypatch.context() as patched:
            if name == "stranger":
                patched.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger's"))
            how = ("--agents", "1", "--steps", "1", "--store", "embedded", "--quiet")
            assert run("meadow.py", *how, "--out", name)[0] == 0
        found[name] = {file: (Path(name) / file).read_bytes() for file in FILES}
    return found


class Mutator:
    """Draws hostile folders from `found`, the files of real ones."""

    def __init__(self, draw: Random, donors: dict[str, Texts], port: int, world: Path) -> None:
        self.draw, self.donors = draw, donors
        place = f"127.0.0.1:{port}"
        self.values: list[Callable[[], Any]] = [
            lambda: draw.choice([None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), 0.1]),
            lambda: draw.choice(
                ["", "\ud800", "\x1b]0;x\x07", "\x9b2J", "\u202e", "\0", "x" * 99_999]
            ),
            lambda: draw.choice([[], {}, [[]] * 9, {"a": {}}, [None], {"": [1]}]),
            lambda: str(world),
            lambda: f"{world}:make",
            lambda: draw.choice(
                [f"http://{place}", f"http://u:hunter2@{place}", f"vllm:http://{place}"]
            ),
            lambda: draw.choice([f"redis://{place}/0", f"redis://:hunter2@{place}", "embedded:/"]),
            lambda: [f"http://{place}"],
            lambda: place,
        ]

    def folder(self) -> Texts:
        texts = dict(self.donors["mine"])
        forging = self.draw.random() < 0.5
        for _ in range(self.draw.choice([1, 1, 1, 2, 5])):
            name = self.draw.choice([*FILES, FILES[0]])
            how = self.draw.choice([self.swap, self.damage, self.change, self.change, self.replace])
            before = texts[name]
            texts[name] = after = how(name, before)
            if forging and after is not None and after != before:
                bare = re.sub(rb'^\{"crc32":\d*,?', b"{", after.removesuffix(b"\n"))
                texts[name] = with_checksum(bare)
        return texts

    def swap(self, name: str, text: bytes | None) -> bytes | None:
        """Take the file, or its signature, from another folder."""
        other = self.donors[self.draw.choice(["other", "stranger"])][name]
        mine, theirs = _object(text), _object(other)
        if mine is None or theirs is None or self.draw.random() < 0.5:
            return other
        return _written(mine | {"signature": theirs.get("signature")}, text)

    def damage(self, name: str, text: bytes | None) -> bytes | None:
        """Change, delete, insert or repeat bytes."""
        found = bytearray(text or b"{}")
        at = self.draw.randrange(len(found) + 1)
        length = self.draw.choice([1, 1, 2, 20, 500])
        found[at : at + self.draw.choice([0, length])] = self.draw.choice(
            [
                b"",
                self.draw.randbytes(length),
                bytes(found[:length]),
                bytes(found[at - length : at]),
            ]
        )
        return bytes(found)

    def change(self, name: str, text: bytes | None) -> bytes | None:
        """Change a value, or delete or add a key."""
        content = _object(text)
        if content is None:
            return text
        node: Any = content
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                break
            key = self.draw.choice(keys)
            if isinstance(node[key], dict | list) and node[key] and self.draw.random() < 0.8:
                node = node[key]
                continue
            if isinstance(node, dict) and self.draw.random() < 0.2:
                node[f"{key}x"] = node.pop(key)
            else:
                node[key] = self.draw.choice(self.values)()
            break
        return _written(content, text)

    def replace(self, name: str, text: bytes | None) -> bytes | None:
        """Replace the file by something else."""
        deep = self.draw.choice([10, 900, 5_000, 200_000])
        return self.draw.choice(
            [
                None,
                b"",
                b"[]",
                b"null",
                b'"run"',
                b"\xff\xfe{\0}\0",
                b"\xef\xbb\xbf" + (text or b""),
                (text or b"").decode("latin-1").encode("utf-16"),
                b"[" * deep + b"]" * deep,
                b'{"about":' * deep + b"1" + b"}" * deep,
                b'{"format":"metropolis-run","version":2,"about":' + b"9" * deep + b"}",
                (text or b"{}")[:-3] + b',"about":' + b"[" * deep + b"]" * deep + b"}",
                b" " * 1_000_000 + (text or b""),
            ]
        )


def _object(text: bytes | None) -> dict[str, Any] | None:
    try:
        content = json.loads(text or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    content.pop("crc32", None)
    return content


def _written(content: dict[str, Any], before: bytes | None) -> bytes:
    """Return the file `before` with another content, but its old checksum."""
    checksum = (before or b"{").partition(b",")[0]
    return b"%b,%b\n" % (checksum, json.dumps(content).encode()[1:])


def signed(texts: Texts, donors: dict[str, Texts]) -> bool:
    """Return whether the folder names what this user has signed for a run, in any notation."""
    whole = all(intact(text) for text in texts.values() if text is not None)
    return whole and any(same(texts, donors[run]) for run in ("mine", "other"))


def same(texts: Texts, mine: Texts) -> bool:
    """Return whether both folders name the same things."""
    run = [_object(of["run.json"]) for of in (texts, mine)]
    if run[0] is None or json.dumps(run[0], sort_keys=True) != json.dumps(run[1], sort_keys=True):
        return False
    if texts["store.json"] is None:
        return True  # only run.json names a store
    place = [_object(of["store.json"]) or {} for of in (texts, mine)]
    return all(place[0].get(n) == place[1].get(n) for n in ("address", "run", "signature"))


@pytest.mark.parametrize(
    "inputs", [SMALL, pytest.param(LARGE, marks=pytest.mark.campaign)], ids=["small", "large"]
)
def test_hostile_folders(
    run: Command,
    donors: dict[str, Texts],
    listener: socket.socket,
    capsys: pytest.CaptureFixture[str],
    inputs: int,
) -> None:
    hostile = Path("hostile.py").resolve()
    hostile.write_text(HOSTILE)
    run("resume", "nowhere")  # trigger lazy imports
    counts = {"as signed": 0, "refused": 0, "refused though trusted": 0}
    for seed in range(inputs):
        draw = Random(seed)
        texts = Mutator(draw, donors, listener.getsockname()[1], hostile).folder()
        _write(Path("there"), texts)
        command = draw.choice(
            [("resume", "there"), ("--resume", "there"), ("fork", "there", "--at", "1")]
        )
        if signed(texts, donors):
            counts["as signed"] += 1
            assert isinstance(options_of(Path("there"), {}, trust=False), RunOptions), seed
            continue
        status, out, err = watched(partial(run, *command), seed)
        assert (status, out) == (2, ""), (seed, err)
        check_sentence(err, seed)
        counts["refused"] += 1
        try:
            options = watched(lambda: options_of(Path("there"), {}, trust=True), seed)
        except MetropolisError:
            counts["refused though trusted"] += 1
        else:
            read = FILES[: 1 if options.store == MEMORY else 2]
            assert all(intact(text) for name in read if (text := texts[name]) is not None), seed
        check_sentence(capsys.readouterr().err or "metropolis: nothing\n", seed)
    assert not hostile.with_suffix(".ran").exists()
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert counts["refused"] > 0.9 * inputs
    assert 0 < counts["refused though trusted"] < counts["refused"]


def watched(act: Callable[[], Any], seed: int) -> Any:
    """Return the result of `act`; fail if it runs code, starts a process or connects."""
    global _events
    _events = []
    try:
        return act()
    finally:
        seen, _events = _events, None
        assert not seen, (seed, seen)


def check_sentence(err: str, seed: int) -> None:
    assert err.startswith("metropolis: "), (seed, err)
    assert err.count("\n") == 1, (seed, err)
    assert "Traceback" not in err, (seed, err)
    assert "hunter2" not in err, (seed, err)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in err[:-1]), (seed, err)
    assert len(err) < 10_000, (seed, err)


def _write(folder: Path, texts: Texts) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in texts.items():
        if text is not None:
            (folder / name).write_bytes(text)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "link to itself", "device"])
def test_files_that_are_none(run: Command, donors: dict[str, Texts], name: str, kind: str) -> None:
    _write(Path("there"), donors["mine"])
    path = Path("there") / name
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to nothing":
            path.symlink_to("nothing")
        case "link to itself":
            path.symlink_to(path.name)
        case "device":
            path.symlink_to("/dev/zero")
    status, out, err = run("fork", "there", "--at", "99")
    assert (status, out) == (2, ""), err
    check_sentence(err, 0)
