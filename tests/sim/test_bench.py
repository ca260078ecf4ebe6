"""`metropolis bench instances` and `metropolis bench fidelity`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from metropolis._core import simulate
from metropolis.bench import fidelity, instances
from metropolis.bench._real_run import read_run
from metropolis.sim.profiles import load_profile
from metropolis.types import MetropolisError

SERVING = Path(__file__).parents[2] / "../shared/data/serving"
HEADER = "queued_s,input_tokens,output_tokens,first_token_s,last_token_s"
PROFILE = "llama-3-8b/rtx-4090"


def test_every_load_is_measured() -> None:
    result = CliRunner().invoke(instances.command, ["--json", "--requests", "100000"])
    assert result.exit_code == 0, result.output
    rows = {row["load"]: row for row in json.loads(result.output)}
    assert len(rows) == len(instances.LOADS)
    for row in rows.values():
        assert row["requests"] == 100_000
        assert row["requests_per_cpu_s"] > 0
    preempting = [row for row in rows.values() if row["preemptions"]]
    assert len(preempting) == 1


def run_fidelity(path: Path, *options: str) -> dict[str, dict[str, float]]:
    result = CliRunner().invoke(
        fidelity.command,
        [str(path), "--profile", PROFILE, "--json", *options],
        catch_exceptions=False,
    )
    assert result.exit_code == 0, result.output
    metrics: dict[str, dict[str, float]] = json.loads(result.output)["metrics"]
    return metrics


def test_a_real_run_is_reproduced() -> None:
    path = SERVING / "rtx4090_llama31_8b_vllm.csv.gz"
    if not path.exists():
        pytest.skip(f"no real run at {path}")
    metrics = run_fidelity(path)
    for name in ("ttft", "tpot", "latency"):
        assert abs(metrics[f"{name}_mean_s"]["error"]) <= 0.05
        assert abs(metrics[f"{name}_p99_s"]["error"]) <= 0.10
    starved = run_fidelity(path, "--kv-tokens", "20000")
    assert starved["latency_mean_s"]["simulated"] > metrics["latency_mean_s"]["simulated"] * 1.2


@pytest.fixture
def simulated_run(tmp_path: Path) -> Path:
    """A file written from a simulation, which the simulation therefore reproduces exactly."""
    rng = np.random.default_rng(1)
    columns = (np.sort(rng.uniform(0, 20, 40)), rng.integers(1, 900, 40), rng.integers(1, 300, 40))
    times = simulate(load_profile(PROFILE), *columns)
    rows = zip(*columns, times["first_token_sim_s"], times["last_token_sim_s"], strict=True)
    lines = [",".join(repr(value.item()) for value in row) for row in rows]
    path = tmp_path / "run.csv"
    path.write_text("\n".join([HEADER, *reversed(lines), "3.0,17,0,,"]))
    return path


def test_a_simulated_run_is_reproduced_exactly(simulated_run: Path) -> None:
    packed = simulated_run.with_name("run.csv.gz")
    packed.write_bytes(gzip.compress(simulated_run.read_bytes()))
    for path in (simulated_run, packed):
        metrics = run_fidelity(path)
        assert len(metrics) == 9
        assert all(metric["error"] == 0 for metric in metrics.values())
    assert read_run(packed).without_output == 1


def test_the_table_names_every_metric(simulated_run: Path) -> None:
    result = CliRunner().invoke(fidelity.command, [str(simulated_run), "--profile", PROFILE])
    assert result.exit_code == 0, result.output
    for name in ("ttft_mean", "tpot_p50", "latency_p99", "1 request without output"):
        assert name in result.output


def test_single_tokens_have_no_tpot(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text(f"{HEADER}\n0,100,1,0.1,0.1\n")
    assert set(run_fidelity(path)) == {
        f"{metric}_{statistic}_s"
        for metric in ("ttft", "latency")
        for statistic in ("mean", "p50", "p99")
    }


GOOD = "0.5,100,10,0.9,1.5"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "lacks the column 'queued_s'"),
        (HEADER, "holds no request that got a token"),
        (f"{HEADER}\n0.5,100,0,,", "holds no request that got a token"),
        (f"{HEADER.replace('input_', '')}\n{GOOD}", "lacks the column 'input_tokens'"),
        (f"{HEADER},queued_s\n{GOOD},9", "repeats the column 'queued_s'"),
        (f"{HEADER}\n{GOOD}\n0.5,100,10,0.9", "row 2 has 4 fields, the header has 5"),
        (f"{HEADER}\nsoon,100,10,0.9,1.5", "row 1, field 'queued_s' is 'soon'"),
        (f"{HEADER}\nnan,100,10,0.9,1.5", "row 1, field 'queued_s' is 'nan'"),
        (
            f"{HEADER}\n-0.5,100,10,0.9,1.5",
            "row 1, field 'queued_s' is '-0.5', but must be at least the time of the "
            "first request, which is 0",
        ),
        (f"{HEADER}\n{GOOD}\n0.5,0,10,0.9,1.5", "row 2, field 'input_tokens' is '0'"),
        (f"{HEADER}\n0.5,100,-1,0.9,1.5", "row 1, field 'output_tokens' is '-1'"),
        (f"{HEADER}\n0.5,100,1.5,0.9,1.5", "row 1, field 'output_tokens' is '1.5'"),
        (f"{HEADER}\n0.5,100,10,,1.5", "row 1, field 'first_token_s' is ''"),
        (f"{HEADER}\n0.5,100,10,0.4,1.5", "field 'first_token_s' is '0.4', but must be at least"),
        (f"{HEADER}\n0.5,100,10,0.9,0.8", "field 'last_token_s' is '0.8', but must be at least"),
        (f"{HEADER}\n{GOOD}\n0.1,90000,10,0.9,1.5", "row 2, fields 'input_tokens'"),
    ],
)
def test_a_damaged_run_gets_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(content)
    with pytest.raises(MetropolisError) as raised:
        run_fidelity(path)
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(HEADER.encode() * 100)
    for name, content, sentence in (
        ("cut.csv.gz", whole[:-12], "damaged gzip"),
        ("garbled.csv.gz", whole[:12] + b"\xff" * 20, "damaged gzip"),
        ("binary.csv", b"\xff\xfe\x00\x81", "not UTF-8"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(MetropolisError, match=sentence):
            read_run(path)
    with pytest.raises(MetropolisError, match="No such file"):
        read_run(tmp_path / "none.csv")
