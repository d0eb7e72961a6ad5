"""An engine in a process of its own: it answers, its errors come back as text, and its death is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig
from kvweave.engines.hf.process import EngineProcess, EngineProcessError

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.engines.hf.engine import EngineShape

SHAPE = EngineShape(ParallelConfig(), CacheConfig(num_blocks=8))


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with EngineProcess("prefill") as started:
        yield started


def test_an_engine_loads_encodes_prefills_and_counts_its_blocks(engine, tiny_folder, prefill_runner):
    engine.load(tiny_folder("llama"))
    tokens = engine.encode("a cache")
    assert (len(tokens), engine.text(tokens)) == (7, "a cache")
    assert engine.reference(tokens, 4) == prefill_runner("llama").reference(tokens, 4)
    engine.start_prefill(SHAPE)
    assert engine.prefill("request", tokens)["remote_request_id"] == "request"
    assert engine.blocks_in_use(patience_seconds=0.01) == 1


def test_another_engine_takes_the_place_of_the_open_one(engine, tiny_folder):
    engine.load(tiny_folder("llama"))
    engine.start_prefill(SHAPE)
    engine.prefill("request", list(b"a cache"))
    engine.start_decode(SHAPE)
    assert engine.blocks_in_use() == 0


def test_an_error_over_there_comes_back_as_text_and_the_process_goes_on(engine):
    for _ in range(2):
        with pytest.raises(EngineProcessError, match=r"^prefill: engine process: no engine is open; start one first$"):
            engine.prefill("request", [1, 2])


@pytest.mark.parametrize("missing", ["model.safetensors", "tokenizer.json"])
def test_a_folder_that_transformers_cannot_load_is_named(engine, missing, tiny_folder, tmp_path):
    for path in tiny_folder("llama").iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(EngineProcessError, match=f"prefill: model: transformers cannot load {tmp_path}: "):
        engine.load(tmp_path)


def test_a_process_that_dies_is_an_error_that_says_how(engine):
    os.kill(engine.process_id, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineProcessError, match=r"prefill: its process has ended \(exit code -9\), asked to "):
            engine.blocks_in_use()


def test_a_process_that_says_nothing_is_ended():
    with EngineProcess("decode", answer_seconds=0.1) as engine:
        os.kill(engine.process_id, signal.SIGSTOP)
        with pytest.raises(EngineProcessError, match=r"decode: no answer to blocks_in_use in 0\.1 s"):
            engine.blocks_in_use()
        with pytest.raises(EngineProcessError, match=r"exit code -9"):
            engine.blocks_in_use()


def test_closing_ends_the_process():
    engine = EngineProcess("prefill")
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(engine.process_id, 0)


OWNER = """
import os, signal
from kvweave.engines.hf.process import EngineProcess, EngineProcessError

if __name__ == "__main__":
    engine = EngineProcess("prefill")
    try:
        engine.blocks_in_use()
    except EngineProcessError:
        print("started", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_engine_ends_with_a_process_that_was_killed(tmp_path):
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    owner = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
    shown, _ = owner.communicate(timeout=60)  # ends when nobody holds its output any more: the engine is gone too
    assert (shown, owner.returncode) == ("started\n", -signal.SIGKILL)
