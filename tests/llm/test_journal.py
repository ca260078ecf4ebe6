"""The journal: no answer that was paid for is lost, wherever the process is killed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.line_file import LineFile, with_content
from metropolis.llm.base import Completion
from metropolis.llm.journal import JOURNAL, Journal, Key, read_journal
from metropolis.types import MetropolisError

keys = st.builds(
    Key, st.integers(0, 9), st.integers(0, 9), st.text(), st.text(max_size=3), st.integers(0, 3)
)
completions = st.builds(Completion, st.text(), st.integers(0), st.integers(0), st.text())


def fill(path: Path, answers: dict[Key, Completion]) -> None:
    journal = Journal(path)
    for key, completion in answers.items():
        journal.put(key, completion)
    journal.close()


@given(answers=st.dictionaries(keys, completions, max_size=8))
def test_stored_answers_are_found_again(
    answers: dict[Key, Completion], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "answers.jsonl"
    fill(path, answers)
    journal = Journal(path)
    assert {key: journal.get(key) for key in answers} == answers
    assert len(journal) == len(answers)
    journal.close()


def test_a_write_torn_at_any_byte_loses_only_that_answer(tmp_path: Path) -> None:
    answers = {
        Key(agent, 7, "plan", "d", 0): Completion(f"walk\n{agent} ünd\u2028", 5, 7, "stop")
        for agent in range(3)
    }
    path = tmp_path / "answers.jsonl"
    fill(path, answers)
    content = path.read_bytes()
    later = Key(9, 9, "later", "", 0), Completion("more", 1, 1, "stop")
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        whole = max(content[:size].count(b"\n") - 1, 0)
        journal = Journal(path)
        assert len(journal) == whole
        journal.put(*later)
        journal.close()
        expected = dict(list(answers.items())[:whole]) | dict([later])
        assert dict(read_journal(path)) == expected


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    with closing(LineFile(path, JOURNAL, "")) as file:
        file.cut(None)
        file.append([with_content(b'{"key":1}')])
    with pytest.raises(MetropolisError, match=r"jsonl, line 2: is damaged .* content is not that"):
        Journal(path)


@pytest.mark.parametrize("content", [b"x", b'{"agent":3}\n', b'{"line":1,"crc32":0,"a":1}\n'])
def test_another_format_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with pytest.raises(MetropolisError, match="not a metropolis journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_two_runs_do_not_share_a_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "answers.jsonl")
    with pytest.raises(MetropolisError, match="in use by another run"):
        Journal(tmp_path / "answers.jsonl")
    first.close()
    Journal(tmp_path / "answers.jsonl").close()


WRITER = """
import sys
from metropolis.llm.base import Completion
from metropolis.llm.journal import Journal, Key
journal = Journal(sys.argv[1])
for number in range(1_000_000):
    journal.put(Key(number, 0, "plan", "d", 0), Completion("x" * 50, 1, 1, "stop"))
    print(number, flush=True)
"""


def test_a_killed_run_keeps_every_returned_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        given_out = [int(process.stdout.readline()) for _ in range(500)]
        process.kill()
        given_out += [int(line) for line in process.stdout if line.endswith("\n")]
    answers = dict(read_journal(path))
    assert {key.agent for key in answers} >= set(given_out)
