"""The folder of a run: its journal, its stages and its answers.

* `journal.jsonl`: every answer, in order of arrival (`metropolis.llm.journal`); its lock keeps
  other processes from the folder. The function of a key is the node, its occurrence the index.
* `run.json`: the planned and the actual stages, and counts by node.
* `answers.jsonl`: all answers in order of node and index, once they are complete.
* `engines/NODE-COPY.log`: the output of engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from metropolis.durable import reported, write_atomically
from metropolis.llm.base import Completion
from metropolis.llm.journal import Journal, key_of, read_journal
from metropolis.plan.application import Application
from metropolis.plan.running.communicator import Communicator
from metropolis.plan.running.engine import NodeCall, Sampling
from metropolis.plan.schedule import IN_RUN, Schedule, read_schedules
from metropolis.types import MetropolisError

FORMAT = "metropolis plan run"
VERSION = 1
ACTUAL = "actual"
"""Names the schedule that was run, in place of a method."""
JOURNAL_FILE, ANSWERS, LOGS = "journal.jsonl", "answers.jsonl", "engines"


class NodeRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What became of a node's requests; tokens are those of its answers."""

    model: str
    requests: int
    path: str = ""
    """Path of the model's weights, as in engine commands."""
    answered: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    sent_again: int = 0
    """Requests sent again, since an engine was stopped, died or failed."""


class RunRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A run so far; times in seconds since its start, without pauses between its processes."""

    format: str
    version: int
    application: str
    digest: str
    """Digest of the application and the sampling."""
    planned: Schedule
    actual: Schedule
    elapsed_s: float
    nodes: dict[str, NodeRecord]

    @property
    def is_complete(self) -> bool:
        """Whether every request is answered."""
        return all(node.answered == node.requests for node in self.nodes.values())


class RunFolder:
    """The folder `path` of a run, created if missing, locked until `close`.

    `planned`: the schedule to follow; None: that of the run in the folder. Raises MetropolisError
    if the folder has a run of another application or sampling, is in use, damaged or another
    folder.
    """

    def __init__(
        self, path: Path, application: Application, sampling: Sampling, planned: Schedule | None
    ) -> None:
        self.path = path
        digest = _digest(application, sampling)
        self.record = _record(path, application, digest, planned)
        with reported(path):
            (path / LOGS).mkdir(parents=True, exist_ok=True)
        self._journal = Journal(path / JOURNAL_FILE, digest)
        self.record = _record(path, application, digest, planned)  # nothing changes it any more
        self.answers = {
            (key.function, key.occurrence): completion
            for key, completion in read_journal(path / JOURNAL_FILE)
        }
        for node in self.record.nodes.values():
            node.answered = node.prompt_tokens = node.output_tokens = 0
        for (name, _), completion in self.answers.items():
            self._count(name, completion)
        self.save()

    def use_paths(self, paths: Mapping[str, str]) -> None:
        """Record the paths of the nodes' weights. Raises MetropolisError if a node has answers of
        other weights."""
        for name, path in paths.items():
            node = self.record.nodes[name]
            if node.answered and node.path not in ("", path):
                raise MetropolisError(
                    f"{self.path} holds answers of {name} by the model in {node.path}, which is "
                    f"now {path}: restore [engines.{node.model}], or name another --out"
                )
            node.path = path

    def log_file(self, name: str, copy: int) -> Path:
        """The log of a node's engines; copies count from 1."""
        return self.path / LOGS / f"{name}-{copy}.log"

    def put(self, call: NodeCall, completion: Completion) -> None:
        """Write an answer. Raises UnwritableError."""
        self._journal.put(key_of(call), completion)
        self._count(call.function, completion)

    def save(self) -> None:
        """Write the record, and make all answers survive a power cut. Raises UnwritableError."""
        self._journal.flush()
        content = msgspec.json.format(msgspec.json.encode(self.record))
        write_atomically(self.path / IN_RUN, content + b"\n")

    def write_answers(self, communicator: Communicator) -> None:
        """Write all answers in order of node and index. Raises UnwritableError."""
        lines = []
        for name, requests in communicator.requests.items():
            for index, request in enumerate(requests):
                answer = communicator.answers[name, index]
                line = {
                    "node": name,
                    "key": request.key,
                    "index": index,
                    "prompt_tokens": answer.prompt_tokens,
                    "output_tokens": answer.output_tokens,
                    "text": answer.text,
                }
                lines.append(msgspec.json.encode(line) + b"\n")
        write_atomically(self.path / ANSWERS, b"".join(lines))

    def close(self) -> None:
        """Write the record and unlock the folder."""
        try:
            self.save()
        finally:
            self._journal.close()

    def _count(self, name: str, completion: Completion) -> None:
        node = self.record.nodes[name]
        node.answered += 1
        node.prompt_tokens += completion.prompt_tokens
        node.output_tokens += completion.output_tokens


def has_run(path: Path) -> bool:
    """Whether the folder holds a run, or another `run.json`."""
    return (path / IN_RUN).exists()


def read_run(path: Path) -> RunRecord:
    """The record of the run in a folder. Raises MetropolisError if there is none."""
    file = path / IN_RUN
    other = "it is not the folder of a `metropolis plan run`; name another --out"
    try:
        record = msgspec.json.decode(file.read_bytes(), type=RunRecord)
    except OSError as error:
        raise MetropolisError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise MetropolisError(f"{file}: {error}; {other}") from error
    if (record.format, record.version) != (FORMAT, VERSION):
        raise MetropolisError(
            f"{file}: is a {record.format} of version {record.version}, and not of {VERSION}; "
            f"{other}"
        )
    read_schedules(file)  # checks the stages
    return record


def _record(
    path: Path, application: Application, digest: str, planned: Schedule | None
) -> RunRecord:
    """The record of the run in the folder, or a new one."""
    if not has_run(path):
        return _new_record(path, application, digest, planned)
    record = read_run(path)
    _check_digest(path, record, digest)
    if missing := {node.name for node in application.nodes} - record.nodes.keys():
        raise MetropolisError(
            f"{path / IN_RUN} lacks the nodes {', '.join(sorted(missing))}; restore the file, or "
            "name another --out"
        )
    record.planned = planned or record.planned
    return record


def _new_record(
    path: Path, application: Application, digest: str, planned: Schedule | None
) -> RunRecord:
    if planned is None:
        raise MetropolisError(f"{path} has no run, so a schedule is needed")
    nodes = {
        name: NodeRecord(application.node(name).model, len(requests))
        for name, requests in application.requests().items()
    }
    actual = Schedule(ACTUAL, ())
    return RunRecord(FORMAT, VERSION, application.name, digest, planned, actual, 0.0, nodes)


def _digest(application: Application, sampling: Sampling) -> str:
    content = msgspec.json.encode([application, sampling])
    return hashlib.sha256(content).hexdigest()[:16]


def _check_digest(path: Path, record: RunRecord, digest: str) -> None:
    if record.digest != digest:
        raise MetropolisError(
            f"{path} holds answers to another application, or with another seed or temperature: "
            "restore these, or name another --out"
        )
