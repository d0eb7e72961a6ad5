"""An embedded engine in an operating system process of its own.

``EngineProcess`` starts a process and asks it, one question at a time. The process outlives its engines, so many models
and shapes can be tried with one start of torch; it ends with the process that started it, however that one ends. Both
ends are this program: the channel is no way in for a peer.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kvweave.errors import ConfigurationError, KVWeaveError, LocalProtocolError
from kvweave.runtime.closing import Closing

_ANSWER_SECONDS = 600.0
_CLOSE_SECONDS = 20.0
_PATIENCE_SECONDS = 10.0


class EngineProcessError(KVWeaveError):
    """The other process could not answer; the message is its own."""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str


class EngineProcess(Closing):
    """One engine process, called ``name`` in messages. ``close`` (or leaving the context) ends it.

    Every question raises ``EngineProcessError`` when the process cannot answer it, has ended, or says nothing for
    ``answer_seconds`` (then it is ended).
    """

    def __init__(self, name: str, answer_seconds: float = _ANSWER_SECONDS) -> None:
        self._name = name
        self._answer_seconds = answer_seconds
        context = multiprocessing.get_context("spawn")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int:
        """The operating system's number of the process."""
        return self._process.pid or 0

    def load(self, folder: Path, threads: int = 1) -> None:
        """Loads the model; an engine of an earlier model is closed."""
        self._ask("load", str(folder), threads)

    def encode(self, prompt: str) -> list[int]:
        """The prompt's tokens, as a chat message where the model has a chat template."""
        return list(self._ask("encode", prompt))

    def text(self, tokens: Sequence[int]) -> str:
        """The tokens as text, special tokens left out."""
        return str(self._ask("text", list(tokens)))

    def start_prefill(self, shape: Any) -> str:
        """Opens a prefill engine of that ``EngineShape``; the earlier engine is closed. Returns its address."""
        return str(self._ask("start_prefill", shape))

    def start_decode(self, shape: Any) -> None:
        """Opens a decode engine of that ``EngineShape``; the earlier engine is closed."""
        self._ask("start_decode", shape)

    def prefill(self, request_id: str, tokens: Sequence[int]) -> Mapping[str, Any] | None:
        """``HuggingFacePrefill.prefill``."""
        params: Mapping[str, Any] | None = self._ask("prefill", request_id, list(tokens))
        return params

    def decode(self, tokens: Sequence[int], params: Mapping[str, Any] | None, max_new_tokens: int) -> Any:
        """``HuggingFaceDecode.decode``: an ``Answer``."""
        return self._ask("decode", list(tokens), params, max_new_tokens)

    def prefill_in_chunks(
        self, request_id: str, tokens: Sequence[int], transfer_id: str, chunk_tokens: int
    ) -> Mapping[str, Any] | None:
        """``HuggingFacePrefill.prefill_in_chunks``."""
        params: Mapping[str, Any] | None = self._ask(
            "prefill_in_chunks", request_id, list(tokens), transfer_id, chunk_tokens
        )
        return params

    def decode_followed(self, tokens: Sequence[int], transfer_id: str, address: str, max_new_tokens: int) -> Any:
        """``HuggingFaceDecode.decode_followed``: an ``Answer``."""
        return self._ask("decode_followed", list(tokens), transfer_id, address, max_new_tokens)

    def reference(self, tokens: Sequence[int], max_new_tokens: int, chunk_tokens: int | None = None) -> list[int]:
        """The same model's tokens in one engine, which computes the prompt in chunks or at once."""
        return list(self._ask("reference", list(tokens), max_new_tokens, chunk_tokens))

    def blocks_in_use(self, patience_seconds: float = _PATIENCE_SECONDS) -> int:
        """Blocks of the open engine that are not free; waits that long for each offer that is about to be released."""
        return int(self._ask("blocks_in_use", patience_seconds))

    def close(self) -> None:
        """Ends the engine and the process, by force when it does not end by itself."""
        self._channel.close()
        self._process.join(_CLOSE_SECONDS)
        self._process.kill()
        self._process.join()

    def _ask(self, question: str, *arguments: Any) -> Any:
        try:
            self._channel.send((question, arguments))
            if not self._channel.poll(self._answer_seconds):
                self._process.kill()
                raise EngineProcessError(f"{self._name}: no answer to {question} in {self._answer_seconds:g} s")
            answer = self._channel.recv()
        except (EOFError, OSError):
            self._process.join(_CLOSE_SECONDS)
            raise EngineProcessError(
                f"{self._name}: its process has ended (exit code {self._process.exitcode}), asked to {question}"
            ) from None
        if isinstance(answer, _Failure):
            raise EngineProcessError(f"{self._name}: {answer.message}")
        return answer


class _Host:
    """Lives in the engine process: one loaded model, one open engine."""

    def __init__(self) -> None:
        self._runner: Any = None
        self._tokenizer: Any = None
        self._engine: Any = None

    def load(self, folder: str, threads: int) -> None:
        from transformers import AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        from kvweave import models
        from kvweave.engines.hf.runner import ModelRunner

        self.close()
        disable_progress_bar()
        known = models.load(folder, dtype="float32")
        try:
            self._runner = ModelRunner.load(folder, known, threads)
            self._tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:  # what transformers raises for files that are missing or unreadable
            raise ConfigurationError(
                f"model: transformers cannot load {folder}: {error}; name a folder with config, weights and tokenizer"
            ) from error

    def encode(self, prompt: str) -> list[int]:
        tokenizer = self._tokenizer
        if not tokenizer.chat_template:
            return list(tokenizer.encode(prompt))
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(text, add_special_tokens=False))

    def text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

    def start_prefill(self, shape: Any) -> str:
        from kvweave.engines.hf.engine import HuggingFacePrefill
        from kvweave.transport.nixl import NixlTransport

        self.close()
        self._engine = HuggingFacePrefill(self._runner, shape, NixlTransport)
        return str(self._engine.address)

    def start_decode(self, shape: Any) -> None:
        from kvweave.engines.hf.engine import HuggingFaceDecode
        from kvweave.transport.nixl import NixlTransport

        self.close()
        self._engine = HuggingFaceDecode(self._runner, shape, NixlTransport)

    def prefill(self, request_id: str, tokens: list[int]) -> Mapping[str, Any] | None:
        return self._opened().prefill(request_id, tokens)  # type: ignore[no-any-return]

    def decode(self, tokens: list[int], params: Mapping[str, Any] | None, max_new_tokens: int) -> Any:
        return self._opened().decode(tokens, params, max_new_tokens, self._stop_tokens())

    def prefill_in_chunks(
        self, request_id: str, tokens: list[int], transfer_id: str, chunk_tokens: int
    ) -> Mapping[str, Any] | None:
        engine = self._opened()
        return engine.prefill_in_chunks(request_id, tokens, transfer_id, chunk_tokens)  # type: ignore[no-any-return]

    def decode_followed(self, tokens: list[int], transfer_id: str, address: str, max_new_tokens: int) -> Any:
        return self._opened().decode_followed(tokens, transfer_id, address, max_new_tokens, self._stop_tokens())

    def reference(self, tokens: list[int], max_new_tokens: int, chunk_tokens: int | None) -> list[int]:
        return list(self._runner.reference(tokens, max_new_tokens, self._stop_tokens(), chunk_tokens))

    def blocks_in_use(self, patience_seconds: float) -> int:
        return int(self._opened().blocks_in_use(patience_seconds))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _opened(self) -> Any:
        if self._engine is None:
            raise LocalProtocolError("engine process: no engine is open; start one first")
        return self._engine

    def _stop_tokens(self) -> tuple[int, ...]:
        stop = self._tokenizer.eos_token_id
        return () if stop is None else (stop,)


def _serve(channel: Connection) -> None:
    """The engine process: answers until the other end is closed. Our own errors go back as text.

    An interrupt from the keyboard reaches both processes; the one that asks decides what becomes of it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host = _Host()
    with suppress(EOFError, OSError):
        while True:
            question, arguments = channel.recv()
            channel.send(_answer(host, question, arguments))
    host.close()


def _answer(host: _Host, question: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(host, question)(*arguments)
    except KVWeaveError as error:
        return _Failure(str(error))
