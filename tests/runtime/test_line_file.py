"""Files of checksummed lines, with segments so small that every test has several."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis import line_file
from metropolis.durable import DamagedError, UnwritableError
from metropolis.line_file import (
    Format,
    LineFile,
    RewoundError,
    read_lines,
    texts_of_lines,
    with_content,
)
from metropolis.types import MetropolisError

KIND = Format("test", 1, "keep {intact} lines")
SEGMENT_BYTES = 300


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "SEGMENT_BYTES", SEGMENT_BYTES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return (tmp_path_factory.mktemp("lines") for _ in count())


def opened(path: Path, keep: int | None = None) -> LineFile:
    """The file with its first `keep` lines; None: with all."""
    file = LineFile(path, KIND, "run")
    kept = list(islice(file.read(), keep))
    file.cut(kept[-1] if kept else None)
    return file


def contents(path: Path) -> list[int]:
    return [int(line.content) for line in read_lines(path, KIND, "run")]


def put(file: LineFile, *numbers: int) -> None:
    file.append([with_content(b"%d" % number) for number in numbers])


def segments(path: Path) -> list[Path]:
    return sorted(path.with_suffix("").glob("*"))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("reopen"), st.integers(0, 60)),
        st.tuples(st.just("kill"), st.integers(1, 12), st.integers(0, 4)),
    ),
    max_size=12,
)


@given(operations=operations)
def test_it_is_a_list_that_survives_kills(folders: Iterator[Path], operations: list) -> None:
    """Whatever a kill interrupts, what was appended stays, and nothing else."""
    path = next(folders) / "numbers.jsonl"
    model: list[int] = []
    file = opened(path)
    numbers = count()
    for operation in operations:
        match operation:
            case "append", amount:
                added = [next(numbers) for _ in range(amount)]
                put(file, *added)
                model += added
            case "reopen", keep:
                file.close()
                file = opened(path, keep)
                del model[keep:]
            case "kill", amount, writes:
                added = [next(numbers) for _ in range(amount)]
                with killed_after(writes), suppress(Killed):
                    put(file, *added)
                    model += added
                file.close()
                assert contents(path) == model
                with killed_after(writes), suppress(Killed):
                    opened(path, len(model) // 2).close()
                assert contents(path)[: len(model) // 2] == model[: len(model) // 2]
                file = opened(path, len(model) // 2)
                del model[len(model) // 2 :]
        assert contents(path) == model
        assert path.stat().st_size < SEGMENT_BYTES + 24 * 60
    marks = [line.mark for line in read_lines(path, KIND, "run")]
    for at, mark in enumerate(marks):
        after = [int(line.content) for line in read_lines(path, KIND, "run", mark)]
        assert after == model[at + 1 :]
        texts = list(texts_of_lines(path, KIND, mark.lines + 1))
        assert len(texts) == len(model) - at
    file.close()


class killed_after:  # noqa: N801 - a context
    """The process is killed after so many changes of the names of files."""

    def __init__(self, changes: int) -> None:
        self.left = changes
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        for name in ("replace", "unlink"):
            self.patch.setattr(Path, name, self.counted(getattr(Path, name)))

    def counted(self, call):  # type: ignore[no-untyped-def]
        def counted(path: Path, *arguments: object, **options: object) -> object:
            if ".partial" not in path.name or call.__name__ == "replace":
                self.left -= 1
                if self.left < 0:
                    raise Killed
            return call(path, *arguments, **options)

        return counted

    def __exit__(self, *_: object) -> None:
        self.patch.undo()


def test_an_append_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    with closing(opened(path)) as file:
        while path.stat().st_size < SEGMENT_BYTES:
            put(file, 0)
        before = contents(path)
        (tmp_path / "numbers").write_text("in the way of the segments")
        with pytest.raises(UnwritableError):
            put(file, 1)
        assert contents(path) == before
        (tmp_path / "numbers").unlink()
        put(file, 2)
        assert contents(path) == [*before, 2]
        assert segments(path)


def test_a_reader_follows_a_file_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    with closing(opened(path)) as file:
        put(file, 0)
        reader = read_lines(path, KIND, "run")
        found = [int(next(reader).content)]
        put(file, *range(1, 40))
        put(file, *range(40, 80))
        put(file, 80)
        found += [int(line.content) for line in reader]  # of the file that it opened
        mark = list(read_lines(path, KIND, "run"))[len(found) - 1].mark
        found += [int(line.content) for line in read_lines(path, KIND, "run", mark)]
    assert found == list(range(81))
    assert len(segments(path)) == 2


def test_a_line_that_was_cut_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    with closing(opened(path)) as file:
        for number in range(60):
            put(file, number)
    marks = [line.mark for line in read_lines(path, KIND, "run")]
    with closing(opened(path, 30)) as file:
        put(file, *range(100, 160))
    assert [int(line.content) for line in read_lines(path, KIND, "run", marks[29])] == list(
        range(100, 160)
    )
    for at in (30, 45, 59):
        with pytest.raises(RewoundError, match=f"no longer has its line {at + 2}"):
            next(read_lines(path, KIND, "run", marks[at]))


def test_damage_of_a_segment_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    with closing(opened(path)) as file:
        for number in range(60):
            put(file, number)
    first, second, *_ = segments(path)
    intact = second.read_bytes()
    second.write_bytes(intact[: len(intact) // 2])
    with pytest.raises(DamagedError, match=rf"{second}, line \d+: is damaged .*; keep 0 lines"):
        contents(path)
    lines = gzip.decompress(intact).splitlines(keepends=True)
    second.write_bytes(gzip.compress(b"".join(lines[:2]) + lines[2].replace(b"is", b"si")))
    with pytest.raises(DamagedError, match=rf"{second}, line \d+: .*checksum.*; keep 2 lines"):
        contents(path)
    second.write_bytes(intact)
    assert contents(path) == list(range(60))
    first.unlink()
    with pytest.raises(DamagedError, match="should begin with"):
        contents(path)


def test_a_newest_file_of_another_run_is_not_repaired_by_lines(tmp_path: Path) -> None:
    """The lines that it lacks are in no file, so none of its lines can be kept."""
    path, longer = tmp_path / "numbers.jsonl", tmp_path / "longer.jsonl"
    for each, lines in ((path, 20), (longer, 60)):
        with closing(opened(each)) as file:
            for number in range(lines):
                put(file, number)
    longer.replace(path)
    with pytest.raises(DamagedError, match=r"^\S+numbers.jsonl, line (\d+): is damaged") as caught:
        contents(path)
    assert re.search(r"; it begins with line \d+; restore the file$", f"{caught.value}")


def test_a_locked_file_stays_locked_when_it_is_sealed(tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    file = LineFile(path, KIND, "run", exclusive=True)
    file.cut(None)
    for number in range(60):
        put(file, number)
        with pytest.raises(MetropolisError, match="is in use by another run"):
            LineFile(path, KIND, "run", exclusive=True)
    assert len(segments(path)) > 2
    file.close()
    LineFile(path, KIND, "run", exclusive=True).close()


def test_a_file_that_cannot_be_reached_is_not_missing(tmp_path: Path) -> None:
    assert not [*read_lines(tmp_path / "missing", KIND, None)]
    with pytest.raises(OSError, match="File name too long"):
        next(read_lines(tmp_path / ("x" * 300), KIND, None))
