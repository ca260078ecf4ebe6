"""Plug-ins by name, with options, in a row; the example of a third party, installed for real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.dispatch.check import check_policy
from metropolis.policy.base import RANK_BITS, Policy, QueuedRequest
from metropolis.policy.combined import Combined
from metropolis.policy.named import POLICIES, named
from metropolis.trace.parquet import write_trace
from metropolis.types import MetropolisError
from tests.small_traces import small_trace

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_policy"


class ByTokens(Policy):
    rank_bits = 20

    def __init__(
        self,
        weight: float = 1.0,
        is_up: bool = True,
        lows: tuple[int, ...] = (1, 2),
        scale: float | None = None,
        highs: tuple[int, ...] = (),
    ) -> None:
        self.told = weight, is_up, lows
        assert (scale, highs) == (None, ())

    def rank(self, request: QueuedRequest) -> int:
        return request.prompt_tokens


class Needy(ByTokens):
    def __init__(self, needed: int) -> None:
        super().__init__()


class Wide(ByTokens):
    rank_bits = RANK_BITS


def request(number: int, step: int, tokens: int) -> QueuedRequest:
    return QueuedRequest(number, "p", "f", tokens, 0.0, 0.0, step=step)


@pytest.fixture
def _ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A distribution with one entry point, as pip would leave it."""
    folder = tmp_path / "ours-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        f"[{POLICIES}]\nours = {__name__}:ByTokens\nneedy = {__name__}:Needy\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_ours")
def test_options_take_the_type_of_their_default() -> None:
    assert named(POLICIES, "ours")().told == (1.0, True, (1, 2))
    made = named(POLICIES, "ours:weight=3,is_up=false,lows=4/5/6")()
    assert made.told == (3.0, False, (4, 5, 6))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ours:heavy=1", "ours has no option 'heavy'; its options: weight, is_up, lows, scale"),
        ("fcfs:heavy=1", "fcfs has no option 'heavy'; its options: none"),
        ("ours:weight", "'weight' is not an option; write ours:option=value"),
        ("ours:", "'' is not an option; write ours:option=value"),
        ("ours:weight=x", "option weight is 'x'; write it like 1.0"),
        ("ours:is_up=1", "option is_up is '1'; write it like true"),
        ("ours:lows=1/x", "option lows is '1/x'; write it like 1/2"),
        ("ours:scale=2", "ours: option scale has the default None; to be given as text, its def"),
        ("ours:highs=2/3", r"ours: option highs has the default \(\); to be given as text"),
        ("needy", "needy: the parameter 'needed' of its constructor has no default; give it one"),
        ("lifo", "'lifo' is not among the policies: atlas, fcfs"),
        ("step+lifo", "'lifo' is not among the policies: atlas, fcfs"),
        ("ours:weight=1,weight=2", "ours: option weight is given twice; give it once"),
        ("step:bucket=0", "step: bucket is 0; it should be at least 1"),
        ("kairos:window=3", "kairos: window is 3; it should be at least 8"),
        ("mlfq:promote_s=nan", "mlfq: promote_s is nan; it should be above 0"),
        ("step+plas:beta=-1", "plas: beta is -1.0; it should be above 0"),
    ],
)
@pytest.mark.usefixtures("_ours")
def test_what_is_wrong_is_said(text: str, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        named(POLICIES, text)()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1), st.integers(1, 9))
def test_in_a_row_the_second_orders_what_is_equal_to_the_first(
    told: list[tuple[int, int]], bucket: int
) -> None:
    policy = Combined([named(POLICIES, f"step:bucket={bucket}")(), ByTokens()])
    requests = [request(number, *one) for number, one in enumerate(told)]
    found = sorted(requests, key=policy.rank)
    expected = sorted(requests, key=lambda r: (r.step // bucket, r.prompt_tokens))
    assert found == expected
    assert all(0 <= policy.rank(one) < 1 << RANK_BITS for one in requests)


def test_ranks_beyond_the_bits_are_the_same() -> None:
    policy = Combined([named(POLICIES, "step")(), ByTokens()])
    assert policy.rank(request(0, 2**50, 5)) == policy.rank(request(1, 2**60, 5)) < 1 << RANK_BITS
    with pytest.raises(MetropolisError, match=r"policy 2 \(Wide\) takes 62 of a rank's 62 bits"):
        Combined([named(POLICIES, "step")(), Wide()])


@pytest.mark.parametrize("text", ["step+kairos", "step:bucket=4+topology+kairos", "fcfs+step"])
def test_policies_in_a_row_keep_the_interface(text: str) -> None:
    if text == "fcfs+step":
        with pytest.raises(MetropolisError, match=r"^fcfs\+step: policy 2 \(StepFirst\) takes"):
            check_policy(named(POLICIES, text))
    else:
        check_policy(named(POLICIES, text))


USE = """
import json
from metropolis.dispatch.check import check_dispatcher, check_policy
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
check_policy(named(POLICIES, "short-prompts:patience_s=5"))
check_dispatcher(named(DISPATCHERS, "by-function"))
print(json.dumps([names_of(POLICIES), names_of(DISPATCHERS)]))
"""


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python where the example is installed."""
    source, target = (tmp_path_factory.mktemp("example") / name for name in ("source", "target"))
    shutil.copytree(EXAMPLE, source)
    install = ["pip", "install", "-q", "--no-deps", "--target", str(target), str(source)]
    subprocess.run([sys.executable, "-m", *install], check=True)
    place = {"PYTHONPATH": str(target), "PATH": ""}

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, env=place, capture_output=True, text=True, check=False)

    return run


def test_the_example_of_a_third_party_keeps_the_interface(run: Run) -> None:
    used = run(USE)
    assert used.returncode == 0, used.stderr
    policies, dispatchers = json.loads(used.stdout)
    assert "short-prompts" in policies
    assert "by-function" in dispatchers


def test_the_example_is_used_by_name_in_a_command(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "small.parquet"
    write_trace(small_trace(5, agents=4, steps=6, edge=9, radius=2), trace)

    def replay(policy: str) -> subprocess.CompletedProcess[str]:
        chosen = ["--policy", policy, "--dispatcher", "by-function", "--json"]
        return run("from metropolis.cli import main; main()", "replay", str(trace), *chosen)

    replayed = replay("short-prompts:patience_s=9")
    assert replayed.returncode == 0, replayed.stderr
    assert {row["policy"] for row in json.loads(replayed.stdout)} == {"short-prompts:patience_s=9"}
    refused = replay("short-prompts:patience_s=-1")
    assert refused.returncode == 2
    assert refused.stderr == (
        "metropolis: short-prompts: patience_s is -1.0; it should be above 0, and not inf\n"
    )


def test_a_policy_is_named_once() -> None:
    with pytest.raises(MetropolisError, match=r"'step\+kairos\+step' names a policy twice"):
        named(POLICIES, "step+kairos+step")
