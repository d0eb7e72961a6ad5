"""Tiny models of every family, built and loaded once a run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")

from kvweave.engines.hf.runner import ModelRunner
from kvweave.engines.hf.tiny import tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model."""
    base = tmp_path_factory.mktemp("tiny")
    return cache(lambda family: tiny_model(family, base / family))


@pytest.fixture(scope="session")
def prefill_runner(tiny_folder: Callable[[str], Path]) -> Callable[[str], ModelRunner]:
    """A runner of a family's tiny model."""
    return cache(lambda family: ModelRunner.load(tiny_folder(family)))


@pytest.fixture(scope="session")
def decode_runner(tiny_folder: Callable[[str], Path]) -> Callable[[str], ModelRunner]:
    """A second runner of the same model, sharing nothing with the first."""
    return cache(lambda family: ModelRunner.load(tiny_folder(family)))
