"""Lets SGLang's Python run on a CPU that none of its kernels are built for.

A `.pth` file imports this when the interpreter starts. It puts empty modules in the place of
`triton` and `sgl_kernel`, which SGLang imports without condition and never calls on this path
(torch_native attention, pytorch sampling), and declares two operators before torchvision, whose
library is built for CUDA and does not load, registers itself with them.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

ABSENT = ("triton", "sgl_kernel")


class Anything(Exception):  # noqa: N818 -- it stands for classes of every kind
    """The base of every stand-in class: can be made, raised and derived from."""

    def __init__(self, *given: object, **options: object) -> None:
        pass


class Empty(types.ModuleType):
    """A module that has every name: a class for `Name`, an empty module for `name`.

    Called as a decorator, with or without arguments, it returns what it decorates.
    """

    __version__ = "3.0.0"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made = type(name, (Anything,), {}) if name[0].isupper() else Empty(full)
        setattr(self, name, made)
        return made

    def __call__(self, *given: object, **options: object) -> object:
        """What is decorated, or a decorator that leaves it as it is."""
        if len(given) == 1 and callable(given[0]) and not options:
            return given[0]
        return lambda decorated: decorated


class StandIns:
    """Finds the absent modules, and is asked before torchvision is imported."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """A spec for an absent module; None leaves the import to the others."""
        if name == "torchvision" and not declared:
            declare_operators()
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Empty:
        """An empty module."""
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def declare_operators() -> None:
    """What torchvision's own library would declare; its Python registers shapes for them."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    declared.append(library)


declared: list[object] = []  # torch forgets what a library declared when it is collected
sys.meta_path.insert(0, StandIns())
