"""Hardware and model profiles: data files beside this module, or user files.

`sim/profiles/MODEL.toml` has one table per GPU; the profile's name is `MODEL/TABLE`. The fields are
those of `metropolis._core.Profile` plus `source`, `kv_source` (texts), `estimate` (true: the
numbers are not measured), `tensor_parallel` (GPUs of an instance; default: 1), and for reuse of
other models' caches `layers`, `input_bytes_per_token` and `link_gb_per_s` (default: 25).

Other models have profiles derived from their shape (`metropolis.sim.architecture`).
"""

from __future__ import annotations

import tomllib
from copy import copy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import Any

from metropolis._core import InstancePool, Profile
from metropolis.names import count_in, did_you_mean
from metropolis.reuse.base import CacheShape
from metropolis.sim.architecture import GPUS, Architecture, architectures, derived_profile
from metropolis.types import MetropolisError

FOLDER = Path(__file__).parent / "profiles"

COSTS = ("w_ms", "g_ms", "h_ms", "b_ms", "k_ms", "k_mixed_ms", "q_ms", "c_ms", "d_ms", "e_ms")
"""The fields of a profile that are milliseconds of an iteration."""
_NUMBERS = {*COSTS, "pcie_gb_per_s", "host_gb", "link_gb_per_s"}
_COUNTS = {
    *("kv_capacity_tokens", "block_tokens", "chunk_tokens", "max_sequences"),
    *("kv_bytes_per_token", "tensor_parallel", "layers", "input_bytes_per_token"),
}
_REUSE = {"layers", "input_bytes_per_token", "link_gb_per_s"}
_REQUIRED = {"w_ms", "g_ms", "h_ms", "b_ms", "k_ms", "q_ms", "c_ms", "kv_capacity_tokens", "source"}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(("c_once", "estimate"), (bool,)),
    **dict.fromkeys(("source", "kv_source"), (str,)),
}
_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """The specification of an instance, and the sources of its profile."""

    name: str
    tensor_parallel: int
    """GPUs of an instance."""
    profile: Profile
    source: str
    kv_source: str
    estimate: bool
    model: str | None = None
    """The model that the instance hosts; None: it serves every model."""
    layers: int | None = None
    input_bytes_per_token: int | None = None
    """Bytes of a token's input (E) to one layer."""
    link_gb_per_s: float = 25.0
    """Bandwidth of the network between instances, each way; by default 200 Gbit/s, as in
    DroidSpeak's evaluation."""

    @property
    def shape(self) -> CacheShape:
        """What the model keeps of a token; raises MetropolisError if the profile does not say."""
        kv_bytes = self.profile.kv_bytes_per_token
        if not (self.layers and kv_bytes and self.input_bytes_per_token):
            raise MetropolisError(
                f"the profile {self.name!r} cannot reuse other caches: it lacks one of the fields "
                "'layers', 'kv_bytes_per_token', 'input_bytes_per_token'"
            )
        return CacheShape(self.layers, kv_bytes, self.input_bytes_per_token)

    def keeping_inputs(self, layers: int) -> ProfileEntry:
        """The profile with the KV capacity that is left when E of `layers` layers is kept as well.

        E is kept for every token, in the memory of the KV (DroidSpeak §5.4). Raises MetropolisError
        if the profile does not say how large E is, or if no block is left.
        """
        if not layers:
            return self
        shape, profile = self.shape, copy(self.profile)
        token_bytes = shape.kv_bytes_per_token + layers * shape.input_bytes_per_token
        profile.kv_capacity_tokens = (
            profile.kv_capacity_tokens * shape.kv_bytes_per_token // token_bytes
        )
        _check_profile(profile, f"{self.name} with the inputs of {layers} layers")
        return replace(self, profile=profile)


def profile_names() -> list[str]:
    """Names of the package's profiles, sorted."""
    return sorted(
        f"{path.stem}/{table}" for path in FOLDER.glob("*.toml") for table in read_toml(path)
    )


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile with a name from `profile_names`, or from a TOML file (see `load_entry`)."""
    return load_entry(name_or_path).profile


def load_entry(name_or_path: str | Path) -> ProfileEntry:
    """Like `load_profile`, with the sources.

    A path ends in `.toml`, or in `.toml/TABLE` if the file has several profiles; a file without
    tables is one profile. Raises MetropolisError on an unknown name and on a missing or damaged
    file.
    """
    name = str(name_or_path)
    if ".toml" in name:
        path, _, table = name.rpartition(".toml")
        return _entry_of_file(Path(path + ".toml"), table.strip("/"), name)
    file, _, table = name.partition("/")
    if (derived := _derived(file, table)) is not None:
        return derived
    if name not in (names := profile_names()):
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names
        raise MetropolisError(
            f"there is no profile {name!r}{did_you_mean(name, names)}; the nearest are "
            f"{', '.join(near)}, and a path to a .toml file is accepted too"
        )
    return _entry_of_file(FOLDER / f"{file}.toml", table, name)


def profile_of(architecture: Architecture, gpu: str, tensor_parallel: int) -> Profile:
    """The profile derived from an architecture, on GPUs of that name in `GPUS`.

    Raises MetropolisError if the heads cannot be divided or the memory does not suffice.
    """
    measured = [load_profile(name) for name in ("llama-3-8b/a100", "llama-3-70b/a100-tp4")]
    return derived_profile(architecture, GPUS[gpu], tensor_parallel, *measured)


def _derived(model: str, table: str) -> ProfileEntry | None:
    """The profile of an architecture; None if the name is not of that form."""
    gpu, mark, count = table.rpartition("-tp")
    if model not in architectures() or gpu not in GPUS or not count.isdecimal() or not mark:
        return None
    architecture = architectures()[model]
    tensor_parallel = count_in(count, architecture.heads)
    if tensor_parallel is None:
        raise MetropolisError(f"{model}/{table}: write -tp1 to -tp{architecture.heads}")
    try:
        profile = profile_of(architecture, gpu, tensor_parallel)
    except MetropolisError as error:
        raise MetropolisError(f"{model}/{table}: {error}") from error
    return ProfileEntry(
        f"{model}/{table}",
        tensor_parallel,
        profile,
        "derived from the architecture and the measured profiles of Llama-3 on A100 "
        "(metropolis.sim.architecture)",
        "from the memory of the cards and the weights",
        estimate=True,
        layers=architecture.layers,
        input_bytes_per_token=2 * architecture.hidden,
    )


def _entry_of_file(path: Path, table: str, name: str) -> ProfileEntry:
    content = read_toml(path)
    tables = [key for key, value in content.items() if isinstance(value, dict)]
    if not tables and not table:
        return _entry(content, name, f"{path}")
    if not table and len(tables) == 1:
        table = tables[0]
    if table not in tables:
        if not tables:
            raise MetropolisError(f"{path} has no table {table!r}; it is one profile: name {path}")
        wanted = f", not {table!r}" if table else ""
        raise MetropolisError(
            f"{path} has the profiles {', '.join(tables)}{wanted}; name one as {path}/TABLE"
        )
    return _entry(content[table], name, f"{path}: [{table}]")


def _entry(fields: dict[str, Any], name: str, where: str) -> ProfileEntry:
    if missing := sorted(_REQUIRED - fields.keys()):
        raise MetropolisError(f"{where} lacks the field {missing[0]!r}")
    for field, value in fields.items():
        _check_field(field, value, where)
    numbers = {
        key: value for key, value in fields.items() if key in _NUMBERS | _COUNTS | {"c_once"}
    }
    tensor_parallel = numbers.pop("tensor_parallel", 1)
    reuse = {key: numbers.pop(key) for key in _REUSE & numbers.keys()}
    if not 0 < reuse.get("link_gb_per_s", 1) < inf:
        raise MetropolisError(
            f"{where}: field 'link_gb_per_s' is {reuse['link_gb_per_s']}, but must be above 0 and "
            "finite"
        )
    profile = Profile(**numbers)
    _check_profile(profile, where)
    return ProfileEntry(
        name,
        tensor_parallel,
        profile,
        fields["source"].strip(),
        fields.get("kv_source", "").strip(),
        fields.get("estimate", False),
        **reuse,
    )


def _check_profile(profile: Profile, where: str) -> None:
    try:
        InstancePool(profile)
    except ValueError as error:
        raise MetropolisError(f"{where}: {error}") from error


def _check_field(field: str, value: Any, where: str) -> None:
    if field not in _TYPES:
        near = get_close_matches(field, _TYPES, n=1) or sorted(_TYPES)
        raise MetropolisError(f"{where}: unknown field {field!r}; a profile has {', '.join(near)}")
    expected = _TYPES[field]
    if type(value) not in expected:  # not isinstance: to Python, True is an int
        names = " or ".join(t.__name__ for t in expected)
        raise MetropolisError(f"{where}: field {field!r} is {value!r}, but must be {names}")
    if field in _COUNTS and not 1 <= value <= _COUNT_MAX:
        raise MetropolisError(
            f"{where}: field {field!r} is {value}, but must lie in [1, {_COUNT_MAX}]"
        )


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises MetropolisError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise MetropolisError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of bytes, and of endless numbers
        raise MetropolisError(f"{path} is not a TOML file: {error}") from error
