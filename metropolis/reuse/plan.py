"""Plans: which layers a receiver computes again when it starts from a sender's cache.

The receiver is a fine-tuned variant of the same foundation model as the sender. For the shared
tokens it takes the sender's keys and values (KV), except in the layers of a few bands: those it
computes. A band starts from the sender's input of its first layer, called E (DroidSpeak §5.4); a
band that starts at layer 0 starts from the receiver's own embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import msgspec

from metropolis.durable import write_atomically
from metropolis.types import MetropolisError

FORMAT = "metropolis reuse plan"
VERSION = 1
QUALITY_ROUNDING = 1e-9


class PlanError(MetropolisError):
    """A plan that cannot be used."""


class Band(NamedTuple):
    """Contiguous layers, counted from 0, both ends included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def check_bands(bands: Iterable[Band], layers: int, where: str) -> None:
    """Raise PlanError unless the bands are ascending, apart, and within the layers."""
    before = -2
    for band in bands:
        first, last = band
        if not 0 <= first <= last < layers:
            raise PlanError(
                f"{where}: the band [{first}, {last}] is not within the layers 0 to {layers - 1}"
            )
        if first <= before + 1:
            raise PlanError(
                f"{where}: the band [{first}, {last}] does not leave a layer after the one before "
                "it; order the bands, and join those that touch"
            )
        before = last


def transitions(bands: Iterable[Band]) -> frozenset[int]:
    """The layers whose inputs (E) the bands start from."""
    return frozenset(band.first for band in bands if band.first > 0)


class _Header(msgspec.Struct):
    format: str
    version: int


class PlanPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice of layers, and what it costs."""

    recompute: tuple[Band, ...]
    """The layers that the receiver computes for the shared tokens; empty: all KV is reused."""
    quality: float
    """The receiver's quality with this choice, on the plan's data, from 0 to 1."""
    prefill_share: float
    """Time of the shared tokens' prefill relative to a prefill of all layers, from 0 to 1."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was found for a pair of models; the points are a Pareto front, the fastest first."""

    format: str = FORMAT
    version: int = VERSION
    sender: str
    receiver: str
    layers: int
    metric: str
    """The measure of quality, larger is better."""
    data: str
    """What the quality was measured on."""
    prompt_tokens: int
    """Length of the prompts on which the shares were measured."""
    sender_quality: float | None
    """The sender's own; None: unknown."""
    receiver_quality: float
    """The receiver's quality with a prefill of all layers."""
    points: tuple[PlanPoint, ...]
    source: str
    """How the figures were obtained."""

    def within(self, loss: float) -> list[PlanPoint]:
        """The points whose quality is at most `loss` below the receiver's, the fastest first."""
        least = self.receiver_quality - loss - QUALITY_ROUNDING
        return [point for point in self.points if point.quality >= least]

    def fastest(self, loss: float) -> PlanPoint | None:
        """The fastest point whose quality is at most `loss` below the receiver's, if any."""
        return next(iter(self.within(loss)), None)


def pareto_front(points: Iterable[PlanPoint]) -> tuple[PlanPoint, ...]:
    """The Pareto front of prefill share and quality, the fastest point first."""
    front: list[PlanPoint] = []
    for point in sorted(points, key=lambda one: (one.prefill_share, -one.quality)):
        if not front or point.quality > front[-1].quality:
            front.append(point)
    return tuple(front)


def check_plan(plan: Plan, where: str) -> None:
    """Raise PlanError, which names `where`, unless the plan is consistent."""
    for field in ("sender", "receiver"):
        if not getattr(plan, field).strip():
            raise PlanError(f"{where}: {field} is empty; it should name a model")
    if plan.sender == plan.receiver:
        raise PlanError(f"{where}: sender and receiver are both {plan.sender!r}; they must differ")
    for field in ("layers", "prompt_tokens"):
        if getattr(plan, field) < 1:
            raise PlanError(f"{where}: {field} is {getattr(plan, field)}; it should be at least 1")
    if plan.sender_quality is not None:
        _check_share(plan.sender_quality, f"{where}: sender_quality")
    _check_share(plan.receiver_quality, f"{where}: receiver_quality")
    if not plan.points:
        raise PlanError(f"{where}: points is empty; a plan needs at least one")
    for number, point in enumerate(plan.points):
        check_bands(point.recompute, plan.layers, f"{where}: points[{number}].recompute")
        _check_share(point.quality, f"{where}: points[{number}].quality")
        _check_share(point.prefill_share, f"{where}: points[{number}].prefill_share")
    for number, (one, other) in enumerate(pairwise(plan.points), 1):
        if not (one.prefill_share < other.prefill_share and one.quality < other.quality):
            raise PlanError(
                f"{where}: points[{number}] is not both slower and better than the point before "
                "it; the points should be a Pareto front, the fastest first"
            )


def load_plan(path: Path) -> Plan:
    """The plan in a JSON file. Raises PlanError if it cannot be read or is inconsistent."""
    try:
        content = path.read_bytes()
        header = msgspec.json.decode(content, type=_Header)
        if (header.format, header.version) != (FORMAT, VERSION):
            raise PlanError(
                f"{path}: is {header.format!r} version {header.version}; this release reads "
                f"{FORMAT!r} version {VERSION}"
            )
        plan = msgspec.json.decode(content, type=Plan)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{path}: is not a reuse plan: {error}") from error
    check_plan(plan, str(path))
    return plan


def load_plans(path: Path) -> list[Plan]:
    """The plan in a file, or those in all `.json` files of a folder, by name.

    Raises PlanError as `load_plan`, and if the folder has none.
    """
    if not path.is_dir():
        return [load_plan(path)]
    files = sorted(path.glob("*.json"))
    if not files:
        raise PlanError(f"{path}: has no .json file; it should hold reuse plans")
    return [load_plan(file) for file in files]


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan as JSON, or leave the file as it was.

    Raises PlanError if the plan is inconsistent, and UnwritableError if it cannot be written.
    """
    check_plan(plan, str(path))
    write_atomically(path, msgspec.json.format(msgspec.json.encode(plan)) + b"\n", 0o666)


def _check_share(value: float, what: str) -> None:
    if not (isfinite(value) and 0 <= value <= 1):
        raise PlanError(f"{what} is {value:g}; it should be from 0 to 1")
