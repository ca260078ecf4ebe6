"""Draws arguments, valid and hostile ones, and calls the core with them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

INTS = [
    *(0, -1, 2, 250, 251, 2**15, 2**16, 2**24, 2**24 + 1, 2**31 - 1, 2**31, -(2**31), 2**32 + 5),
    *(2**53, 2**63 - 1, 2**63, -(2**63), 2**64 + 3, 10**30),
]
FLOATS = [
    *(0.0, -0.0, -1.0, 5e-324, 1e-300, 1e9, 1e10, 1e12, 1.1e12, 1e19, 1e300, 1.7e308),
    *(float("inf"), -float("inf"), float("nan"), 2.0**31, 2.0**63),
]
JUNK: list[Any] = [
    *(None, "x", b"\xff", "", (), [], {}, object(), 1 + 2j, True, int, lambda: 0, "9" * 5000),
    *(np.array(3), np.array([]), np.float64("nan"), np.int8(-3), np.array(["a"]), range(3)),
    *([[1, 2], [3]], [None], np.zeros((2, 0, 3)), np.array([1 + 2j]), memoryview(b"abc")),
]
NATIVE_WORDS = ("vector::", "_M_", "basic_string", "std::", "bad_", "deque", "map::")
"""Beginnings of messages of the standard library; ours are sentences."""


class FindingError(Exception):
    """A message that users should not get."""


class RefusedError(Exception):
    """The core has refused a call: the case may continue without it."""


class Draw:
    """Arguments of one case, and the names called."""

    def __init__(self, core: ModuleType, seed: int, done: set[str], vast_rows: int = 2**45) -> None:
        self.vast_rows = vast_rows
        self.core, self.random, self.done = core, random.Random(seed), done
        self.numpy = np.random.default_rng(seed)
        self.vast = False
        """Whether an array larger than memory was drawn."""
        self.hostility = self.random.choice([0, 0.02, 0.1, 0.3, 0.7])

    def hostile(self) -> bool:
        return self.random.random() < self.hostility

    def whole(self, low: int, high: int) -> Any:
        if self.hostile():
            return self.random.choice([*INTS, *INTS, self.random.choice(FLOATS), self.junk()])
        return self.random.randint(low, high)

    def number(self, low: float, high: float) -> Any:
        if self.hostile():
            return self.random.choice([*FLOATS, *FLOATS, self.random.choice(INTS), self.junk()])
        return self.random.choice([low, self.random.uniform(low, high)])

    def flag(self) -> Any:
        return self.junk() if self.hostile() else self.random.random() < 0.5

    def one_of(self, *values: Any) -> Any:
        return self.junk() if self.hostile() else self.random.choice(values)

    def junk(self) -> Any:
        return self.random.choice(JUNK)

    def values(self, dtype: type, count: int, low: float, high: float) -> Any:
        """A column (count,), or an invalid one."""
        if issubclass(dtype, np.integer):
            good = self.numpy.integers(int(low), int(high) + 1, count).astype(dtype)
        else:
            good = self.numpy.uniform(low, high, count).round(1).astype(dtype)
        return self.damaged(good)

    def damaged(self, good: np.ndarray) -> Any:
        """The array, or one with one or two faults."""
        array: Any = good.copy()
        while self.hostile():
            damage = self.random.choice(DAMAGES)
            try:
                array = damage(self, np.asarray(array))
            except (ValueError, TypeError, OverflowError, IndexError):
                return self.junk()
            if not isinstance(array, np.ndarray):
                break
            if max((array.size, *array.shape)) > 2**20:  # copies would take all memory
                break
        return array

    def do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a public name of the module, "Class" or "Class.method" of the first argument."""
        target: Any = self.core
        for part in name.split("."):
            target = getattr(target, part)
        return self._carry_out(name, lambda: target(*args, **kwargs))

    def get(self, name: str, owner: Any) -> Any:
        return self._carry_out(name, lambda: getattr(owner, name.split(".")[1]))

    def put(self, name: str, owner: Any, value: Any) -> Any:
        return self._carry_out(name, lambda: setattr(owner, name.split(".")[1], value))

    def _carry_out(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            result = action()
        except (ValueError, TypeError, AttributeError) as error:
            self._check_sentence(name, error)
            raise RefusedError from error
        except RuntimeError as error:
            if name not in (
                "Controller.validate",
                "Speculation.validate",
                "Replay.run",
            ):  # broken on purpose
                raise FindingError(f"{name}: {error!r}") from error
            raise RefusedError from error
        except MemoryError as error:
            if not self.vast:
                raise FindingError(f"{name}: {error!r}") from error
            raise RefusedError from error
        except Exception as error:
            raise FindingError(f"{name}: {error!r}") from error
        self.done.add(name)
        return result

    def _check_sentence(self, name: str, error: Exception) -> None:
        text = str(error)
        if isinstance(error, TypeError | AttributeError):
            return  # of pybind11, with all signatures
        if not text.strip() or "\n" in text or any(word in text for word in NATIVE_WORDS):
            raise FindingError(f"{name} says {text!r}") from error

    def attempt(self, actions: Sequence[Callable[[], Any]], count: int) -> None:
        """Perform `count` of the actions, drawn at random; a refused one changes nothing."""
        for _ in range(count):
            try:
                self.random.choice(actions)()
            except RefusedError:
                continue


def _spoil_values(draw: Draw, array: np.ndarray) -> np.ndarray:
    pool = INTS if array.dtype.kind in "iu" else FLOATS
    for _ in range(draw.random.randint(1, 3)):
        value = draw.random.choice(pool)
        if array.dtype.kind in "iu" and not np.iinfo(array.dtype).min <= value:
            value = np.iinfo(array.dtype).min
        if array.dtype.kind in "iu" and value > np.iinfo(array.dtype).max:
            value = np.iinfo(array.dtype).max
        array.flat[draw.random.randrange(array.size)] = value
    return array


def _vast(draw: Draw, array: np.ndarray) -> np.ndarray:
    """Return one row broadcast to a shape that is larger than memory, but takes none."""
    draw.vast = True
    return np.broadcast_to(array[:1], (draw.vast_rows, *array.shape[1:]))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


DAMAGES: list[Callable[[Draw, np.ndarray], Any]] = [
    _spoil_values,
    _spoil_values,
    lambda draw, array: array[:-1],
    lambda draw, array: np.concatenate([array, array[-1:]]),
    lambda draw, array: array[:0],
    lambda draw, array: array[::-1],
    lambda draw, array: array[None],
    lambda draw, array: array.reshape(-1),
    lambda draw, array: array.swapaxes(0, -1),
    lambda draw, array: array.astype(draw.random.choice(["i1", "u8", "f4", "f2", ">i4", "O"])),
    lambda draw, array: array.astype(np.int64) + 2**32,
    lambda draw, array: np.broadcast_to(array[:1], (2 ** draw.random.randrange(12), *array.shape)),
    _vast,
    lambda draw, array: array.tolist(),
    lambda draw, array: _frozen(array),
    lambda draw, array: draw.numpy.permutation(array),
    lambda draw, array: draw.junk(),
]
