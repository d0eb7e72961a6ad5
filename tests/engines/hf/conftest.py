"""Tiny models of every family, built and loaded once a run; without the extra ``hf`` what needs them is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engines.hf.planted import FaultyEngine

LoadRunner = Callable[[str], Any]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny model."""
    pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
    from kvweave.engines.hf.tiny import tiny_model

    base = tmp_path_factory.mktemp("tiny")
    return cache(lambda family: tiny_model(family, base / family))


@pytest.fixture(scope="session")
def prefill_runner(tiny_folder: Callable[[str], Path]) -> LoadRunner:
    """A runner of a family's tiny model."""
    from kvweave.engines.hf.runner import ModelRunner

    return cache(lambda family: ModelRunner.load(tiny_folder(family)))


@pytest.fixture(scope="session")
def decode_runner(tiny_folder: Callable[[str], Path]) -> LoadRunner:
    """A second runner of the same model, sharing nothing with the first."""
    from kvweave.engines.hf.runner import ModelRunner

    return cache(lambda family: ModelRunner.load(tiny_folder(family)))


@pytest.fixture(scope="session")
def prefill_process() -> Iterator[FaultyEngine]:
    """The prefill side of ``stage``: set its ``fault``, and it does that wrong."""
    with FaultyEngine("prefill") as engine:
        yield engine


@pytest.fixture(scope="session")
def stage(prefill_process: FaultyEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two engine processes for the whole run, with made models in a folder of the run's own."""
    pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
    pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
    from kvweave.engines.hf.demo import Stage
    from kvweave.engines.hf.process import EngineProcess

    def start(name: str) -> EngineProcess:
        return prefill_process if name == "prefill" else EngineProcess(name)

    with pytest.MonkeyPatch.context() as patch, Stage(start=start) as opened:
        patch.setenv("KVWEAVE_CACHE", str(tmp_path_factory.mktemp("models")))
        yield opened
