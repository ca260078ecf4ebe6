"""Python's objects in huge pages: they are kept, found there, and their memory is returned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

OBJECTS = """
from metropolis._core import use_huge_pages

def kilobytes(name):
    lines = open("/proc/self/smaps").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))

earlier = [(i, str(i)) for i in range(100_000)]
used = use_huge_pages()
assert use_huge_pages() == used
print(used)
long_texts = [f"{i:600}" for i in range(100_000)]  # from the heap of malloc
print(kilobytes("Rss"), kilobytes("AnonHugePages"))
for _ in range(2):
    objects = [(i, str(i)) for i in range(500_000)]
    assert all(item == (i, str(i)) for i, item in enumerate(objects))
    print(kilobytes("Rss"), kilobytes("AnonHugePages"))
    del objects
    print(kilobytes("Rss"), kilobytes("AnonHugePages"))
assert all(item == (i, str(i)) for i, item in enumerate(earlier))
assert all(text == f"{i:600}" for i, text in enumerate(long_texts))
"""
OFFERED = Path("/sys/kernel/mm/transparent_hugepage")


def test_objects_are_in_huge_pages() -> None:
    used, *sizes = subprocess.run(
        [sys.executable, "-c", OBJECTS], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    texts, full, left, full_again, left_again = [[*map(int, line.split())] for line in sizes]
    for more, less in ((full, left), (full_again, left_again)):
        assert less[0] < more[0] - 0.8 * (full[0] - texts[0])
    is_offered = OFFERED.is_dir() and "[never]" not in (OFFERED / "enabled").read_text()
    assert used == str(is_offered and (OFFERED / "hpage_pmd_size").read_text() == "2097152\n")
    if used == "True":
        assert full[1] > 0.7 * full[0]
        assert left[1] > 40_000  # the texts
