"""An embedded engine over NIXL in a process of its own, told what to do line by line, in JSON::

    {"id": 1, "prompt": [..]}                     prefill: {"id": 1, "params": {..}, "checksum": 5}
    {"id": 1, "prompt": [..], "params": {..}}     decode:  {"id": 1, "tokens": [..], "checksum": 5}
                                                        or {"id": 1, "failed": "late", "text": ".."}
    {"id": 2, "blocks_within": 10.0}              {"id": 2, "blocks": 0}

The checksum is that of the request's whole cache: as it was computed, and as it was given to the model on the other
side. Several requests are under way at once. The end of input ends the process. It is forked from one that has imported
everything but NIXL, so that a successor is there in a second.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import kvweave as kw
from kvweave import models
from kvweave.engines.hf.captured import CapturedCache
from kvweave.engines.hf.engine import EngineShape, HuggingFaceDecode, HuggingFacePrefill
from kvweave.engines.hf.model_source import model_folder
from kvweave.engines.hf.runner import ModelRunner, Session
from kvweave.errors import KVWeaveError, TransferRefused, TransportError
from kvweave.runtime import Timing

MODEL = "tiny:llama"
AT_ONCE = 16
PREFILL = EngineShape(kw.ParallelConfig(tp=2), kw.CacheConfig(block_size=16, num_blocks=1024))
DECODE = EngineShape(kw.ParallelConfig(tp=1), kw.CacheConfig(block_size=32, num_blocks=512, layout="NHD"))
TIMING = Timing(handshake_seconds=3.0, answer_seconds=3.0, retry_seconds=1.0, silence_seconds=1.5)
"""Together below five seconds: a peer that stands still is lost after one and a half, and its successor, or itself, is
asked for three more."""

_SET_PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of linux/prctl.h: a process that stands still would not see the end of its input."""


def checksum(captured: CapturedCache) -> int:
    """Of all arrays of a request, with their names and places."""
    found = 0
    for key, array in sorted(captured.arrays.items()):
        found = zlib.crc32(f"{key} {array.first_entry} {array.data.shape}".encode(), found)
        found = zlib.crc32(np.ascontiguousarray(array.data), found)
    return found


class Witness:
    """A runner that remembers, for each thread, the checksum of the cache that went out of it or into it last."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._seen = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    @property
    def checksum(self) -> int:
        return self._seen.checksum

    def capture(self, session: Session) -> CapturedCache:
        captured = self._runner.capture(session)
        self._seen.checksum = checksum(captured)
        return captured

    def restore(self, captured: CapturedCache) -> Session:
        self._seen.checksum = checksum(captured)
        return self._runner.restore(captured)


def prefill_answer(engine: HuggingFacePrefill, witness: Witness, asked: Mapping[str, Any]) -> dict[str, Any]:
    params = engine.prefill(f"request {asked['id']}", asked["prompt"])
    return {"params": params, "checksum": witness.checksum}


def decode_answer(engine: HuggingFaceDecode, witness: Witness, asked: Mapping[str, Any]) -> dict[str, Any]:
    answer = engine.decode(asked["prompt"], asked["params"], 1)
    return {"tokens": answer.tokens, "checksum": witness.checksum}


def reason_of(error: KVWeaveError) -> str:
    """The code of a failure."""
    match error:
        case TransferRefused():
            return str(error.reason)
        case TransportError():
            return str(error.kind.value)
    return type(error).__name__


def serve(engine: Any, answer: Callable[[Mapping[str, Any]], dict[str, Any]], channel: Channel) -> None:
    """Answers every question, each in a thread of its own."""

    def handle(asked: Mapping[str, Any]) -> None:
        try:
            if "blocks_within" in asked:
                said = {"blocks": engine.blocks_in_use(asked["blocks_within"])}
            else:
                said = answer(asked)
        except KVWeaveError as error:
            said = {"failed": reason_of(error), "text": str(error)[:300]}
        channel.say({"id": asked["id"], **said})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for asked in channel.questions():
            pool.submit(handle, asked)


class Channel:
    """Lines of JSON to and from the load, one file for each direction: writing to it makes a text file forget."""

    def __init__(self, connection: socket.socket) -> None:
        self._questions = connection.makefile("r", encoding="utf-8")
        self._answers = connection.makefile("w", encoding="utf-8")
        self._speaking = threading.Lock()

    def say(self, record: object) -> None:
        with self._speaking, suppress(OSError):
            self._answers.write(json.dumps(record) + "\n")
            self._answers.flush()

    def questions(self) -> Iterator[Mapping[str, Any]]:
        """Until the other end is closed."""
        yield from map(json.loads, self._questions)


def run(connection: socket.socket, side: str, address: str, lease_seconds: float, log: str) -> None:
    """What the process does; a prefill engine listens at ``address``."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 2)  # NIXL and UCX write there too
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    from kvweave.transport.nixl import NixlTransport  # not before the fork: NIXL and UCX belong to one process

    channel, folder = Channel(connection), model_folder(MODEL)
    witness: Any = Witness(ModelRunner.load(folder, models.load(folder, dtype="float32")))
    if side == "prefill":
        with HuggingFacePrefill(witness, PREFILL, NixlTransport, lease_seconds, address) as prefill:
            channel.say({"address": prefill.address})
            serve(prefill, lambda asked: prefill_answer(prefill, witness, asked), channel)
    else:
        with HuggingFaceDecode(witness, DECODE, NixlTransport, TIMING) as decode:
            channel.say({"address": address})
            serve(decode, lambda asked: decode_answer(decode, witness, asked), channel)
