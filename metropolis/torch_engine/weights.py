"""Models from folders in the format of Hugging Face; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from metropolis.names import first_line
from metropolis.torch_engine.model import Model
from metropolis.types import MetropolisError

ARCHITECTURES = ("llama", "mistral")
LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Rotary embeddings whose keys depend on the prompt's length; they cannot be reused."""


def load_model(name: str, folder: Path, device: str = "cpu", dtype: str = "auto") -> Model:
    """Load a model and its tokenizer for inference.

    `dtype` is `float32`, `bfloat16`, `float16`, or `auto` for the precision of the folder. Raises
    MetropolisError if the model cannot be loaded or the engine does not support its architecture.
    """
    if not (folder / "config.json").is_file():
        raise MetropolisError(
            f"{name}: {folder} has no config.json; name a folder in the format of Hugging Face"
        )
    disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_architecture(name, config)
        network = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise MetropolisError(f"{name}: {folder} cannot be loaded: {first_line(error)}") from error
    try:
        network.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:  # the latter: torch without CUDA
        raise MetropolisError(
            f"{name}: cannot be moved to {device}: {first_line(error)}"
        ) from error
    return Model(name, network.eval(), tokenizer)


def _check_architecture(name: str, config: AutoConfig) -> None:
    if config.model_type not in ARCHITECTURES:
        raise MetropolisError(
            f"{name}: is a {config.model_type} model; the engine runs {' and '.join(ARCHITECTURES)}"
        )
    rotary = config.rope_parameters["rope_type"]
    if rotary in LENGTH_DEPENDENT:
        raise MetropolisError(
            f"{name}: its rotary embedding is {rotary!r}, whose keys depend on the prompt's "
            "length; such a cache cannot be reused"
        )
