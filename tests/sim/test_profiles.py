"""Profiles of the package and of users."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from metropolis._core import InstancePool
from metropolis.sim.profiles import load_entry, load_profile, profile_names
from metropolis.types import MetropolisError

OWN = """
source = "measured at home"
w_ms = 5
g_ms = 0.1
h_ms = 1
b_ms = 0
k_ms = 1e-4
q_ms = 0
c_ms = 0
kv_capacity_tokens = 1000
"""


def test_the_packages_profiles() -> None:
    assert {
        "llama-3-8b/l4",
        "llama-3-8b/a100",
        "llama-3-8b/h100",
        "llama-3-8b/h200",
        "llama-3-8b/rtx-4090",
        "llama-3-8b/rtx-pro-6000",
        "llama-3-70b/a100-tp4",
        "llama-3-70b/h200-tp4",
        "mixtral-8x7b/a100-tp2",
    } <= set(profile_names())


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_has_its_sources(name: str) -> None:
    entry = load_entry(name)
    assert entry.name == name
    assert entry.source
    assert entry.kv_source
    assert entry.estimate == ("roofline" in entry.source or "scaled" in entry.source)
    assert load_profile(name).kv_capacity_tokens >= 20_000
    InstancePool(load_profile(name), preemption="swap")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(
        MetropolisError, match=r"no profile 'llama-3-8b/rtx4090'.*llama-3-8b/rtx-4090"
    ):
        load_profile("llama-3-8b/rtx4090")


def test_a_users_profile_file(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(OWN)
    profile = load_profile(tmp_path / "one.toml")
    assert (profile.w_ms, profile.kv_capacity_tokens, profile.block_tokens) == (5.0, 1000, 16)
    (tmp_path / "two.toml").write_text(f"[a]{OWN}[b]{OWN}")
    assert load_profile(tmp_path / "two.toml/b").w_ms == 5.0
    for name, sentence in (
        ("two.toml", r"has the profiles a, b; name one as .*two\.toml/TABLE"),
        ("two.toml/c", r"has the profiles a, b, not 'c'; name one as .*two\.toml/TABLE"),
        ("one.toml/c", r"has no table 'c'; it is one profile: name .*one\.toml$"),
    ):
        with pytest.raises(MetropolisError, match=sentence):
            load_profile(tmp_path / name)


@pytest.mark.parametrize(
    ("replace", "by", "sentence"),
    [
        ("w_ms = 5\n", "", "lacks the field 'w_ms'"),
        ("w_ms = 5", "w_ms = '5'", "field 'w_ms' is '5', but must be int or float"),
        ("w_ms = 5", "w_ms = true", "field 'w_ms' is True"),
        ("w_ms = 5", "w_ms = -5", "profile field w_ms is -5"),
        ("w_ms = 5", "w_ms = nan", "profile field w_ms is nan"),
        ("b_ms = 0", "b_ms = 0\nw_mss = 3", "unknown field 'w_mss'; a profile has w_ms"),
        ("b_ms = 0", "b_ms = ", "is not a TOML file"),
        ("b_ms = 0", "b_ms = 0\nhost_gb = -1", "host_gb must be at least 0"),
        ("1000", "0", "field 'kv_capacity_tokens' is 0"),
        ("1000", "10", "must hold at least one block of 16 tokens"),
        ("1000", "10.5", "field 'kv_capacity_tokens' is 10.5, but must be int"),
        ("1000", "1000\nlayers = 0", "field 'layers' is 0"),
        ("1000", "1000\nlink_gb_per_s = 0", "field 'link_gb_per_s' is 0, but must be above 0"),
        ("1000", "1000\nlink_gb_per_s = inf", "field 'link_gb_per_s' is inf"),
    ],
)
def test_a_damaged_file_gets_a_sentence(
    tmp_path: Path, replace: str, by: str, sentence: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(replace, by))
    with pytest.raises(MetropolisError) as raised:
        load_profile(path)
    assert sentence in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", profile_names())
def test_kept_inputs_and_kv_fill_the_memory(name: str) -> None:
    entry = load_entry(name)
    shape, before = entry.shape, entry.profile.kv_capacity_tokens
    assert entry.keeping_inputs(0) is entry
    for layers in range(1, shape.layers + 1):
        token_bytes = shape.kv_bytes_per_token + layers * shape.input_bytes_per_token
        after = entry.keeping_inputs(layers).profile.kv_capacity_tokens
        room = before * shape.kv_bytes_per_token - after * token_bytes
        assert 0 <= room < token_bytes
    assert entry.profile.kv_capacity_tokens == before


def test_inputs_need_sizes_and_room(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    with pytest.raises(MetropolisError, match=r"own\.toml' cannot reuse other caches: it lacks"):
        load_entry(path).keeping_inputs(1)
    path.write_text(OWN + "kv_bytes_per_token = 1\nlayers = 4\ninput_bytes_per_token = 50\n")
    assert load_entry(path).keeping_inputs(1).profile.kv_capacity_tokens == 1000 // 51
    with pytest.raises(MetropolisError, match=r"with the inputs of 2 layers.*hold at least one"):
        load_entry(path).keeping_inputs(2)


def test_a_missing_file_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MetropolisError, match="cannot be read: No such file"):
        load_profile(tmp_path / "none.toml")


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_a_fitted_profile_is_the_fit_to_its_recording(card: str) -> None:
    home = Path(__file__).parents[2]
    recording = home / "traces" / f"{card}-vllm-iterations.csv.gz"
    fit = subprocess.run(
        [sys.executable, home / "examples" / "fit_profile.py", recording],
        capture_output=True,
        text=True,
        check=True,
    )
    profile = load_profile(f"llama-3-8b/{card}")
    for field, value in tomllib.loads(fit.stdout).items():
        assert getattr(profile, field) == pytest.approx(value, rel=0.01), field
