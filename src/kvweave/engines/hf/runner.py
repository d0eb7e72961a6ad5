"""Runs a transformers model on the CPU, one request at a time, and exchanges its cache as logical arrays.

::

    prefill engine   session = runner.prefill(tokens[:-1]);  captured = runner.capture(session)
    decode engine    session = runner.restore(captured);     runner.generate(tokens, 32, session)

Everything is float32 and greedy, so the tokens of a split run can be compared with those of one engine,
``runner.reference``, which computes in the same steps: the prompt without its last token at once, then token by token.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from kvweave import models
from kvweave.core.model import ModelCache
from kvweave.core.spec import MambaSpec
from kvweave.engines.hf import bridge
from kvweave.engines.hf.captured import CapturedCache
from kvweave.errors import LocalProtocolError

_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")


@dataclass(slots=True)
class Session:
    """One request inside a runner: transformers' cache, and how many tokens it has seen.

    ``logits`` are those of the last computed token, (vocabulary,); None when nothing was computed here yet.
    """

    cache: Any
    num_tokens: int = 0
    logits: torch.Tensor | None = None

    def next_token(self) -> int:
        """The greedy choice after the last computed token."""
        if self.logits is None:
            raise LocalProtocolError("session: nothing was computed in it yet; run prefill or step first")
        return int(self.logits.argmax())


@dataclass(frozen=True, slots=True)
class ModelRunner:
    """A loaded transformers model, and the description of what it caches.

    ``cache_argument`` is what the model's forward calls its cache (transformers 5.19 says ``past_key_values``,
    5.24 ``cache``).
    ``takes_positions`` says whether the model wants token positions: they are then stated, since not every family
    (Bamba) asks its cache for them. ``continues_in_chunks`` says whether several tokens at once may follow others:
    not with Mamba1, whose scan in transformers starts from zero whenever it is given more than one token.
    """

    network: Any
    model: ModelCache
    cache_argument: str
    takes_positions: bool
    continues_in_chunks: bool

    @staticmethod
    def load(folder: str | Path, model: ModelCache | None = None, threads: int = 1) -> ModelRunner:
        """Loads a model folder in float32; ``model`` is read from its config.json unless given.

        ``threads`` sets torch's thread count, and transformers' notes on missing kernels are silenced, both for the
        whole process. Raises ``ConfigurationError`` when kvweave does not know what the model caches.
        """
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        known = models.load(folder, dtype="float32") if model is None else model
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        kinds = [layer.spec.mamba_type for layer in known.layers() if isinstance(layer.spec, MambaSpec)]
        parameters = inspect.signature(network.forward).parameters
        cache_argument = next(name for name in _CACHE_ARGUMENTS if name in parameters)
        return ModelRunner(network, known, cache_argument, "position_ids" in parameters, "mamba1" not in kinds)

    def start(self) -> Session:
        """An empty session."""
        return Session(DynamicCache(config=self.network.config))

    def prefill(self, tokens: Sequence[int], session: Session | None = None, chunk_size: int | None = None) -> Session:
        """Computes ``tokens`` behind those that the session has seen, ``chunk_size`` at once (None: all at once)."""
        session = session or self.start()
        first = chunk_size or max(1, len(tokens))
        later = first if self.continues_in_chunks else 1
        position = 0
        while position < len(tokens):
            size = later if session.num_tokens else first
            self._forward(session, tokens[position : position + size])
            position += size
        return session

    def step(self, session: Session, token: int) -> int:
        """Computes one token; the greedy choice behind it."""
        self._forward(session, [token])
        return session.next_token()

    def capture(self, session: Session) -> CapturedCache:
        """Every logical array of the session, named as in the model's specs, each a copy.

        A windowed or chunked array begins where transformers' own cache does: at the last window - 1 tokens.
        """
        return bridge.capture(session.cache, self.model, self._config(), session.num_tokens)

    def restore(self, captured: CapturedCache) -> Session:
        """A session that has seen the captured tokens. Of windowed arrays the tokens still needed are enough.

        Raises ``LocalProtocolError`` when an array or needed entries of it are missing.
        """
        session = self.start()
        bridge.restore(session.cache, self.model, self._config(), captured)
        session.num_tokens = captured.num_tokens
        return session

    def generate(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        session: Session | None = None,
        stop_tokens: Sequence[int] = (),
    ) -> list[int]:
        """The greedy tokens behind the prompt ``tokens``, at most ``max_new_tokens``, up to a stop token.

        ``session`` has seen a proper beginning of the prompt (what was restored); the rest is computed here.
        """
        session = session or self.start()
        if session.num_tokens >= len(tokens):
            raise LocalProtocolError(
                f"generate: the session has seen {session.num_tokens} tokens of a prompt of {len(tokens)}; "
                "leave at least the last one to compute"
            )
        token = self.prefill(tokens[session.num_tokens :], session).next_token()
        made = [token]
        while len(made) < max_new_tokens and token not in stop_tokens:
            token = self.step(session, token)
            made.append(token)
        return made

    def reference(
        self,
        tokens: Sequence[int],
        max_new_tokens: int,
        stop_tokens: Sequence[int] = (),
        chunk_tokens: int | None = None,
    ) -> list[int]:
        """What one engine answers, in the steps of a split run: all but the last prompt token, then singly."""
        return self.generate(tokens, max_new_tokens, self.prefill(tokens[:-1], chunk_size=chunk_tokens), stop_tokens)

    def _config(self) -> Any:
        return self.network.config.get_text_config(decoder=True)

    def _forward(self, session: Session, tokens: Sequence[int]) -> None:
        start, stop = session.num_tokens, session.num_tokens + len(tokens)
        arguments = {self.cache_argument: session.cache}
        if self.takes_positions:
            arguments["position_ids"] = torch.arange(start, stop).unsqueeze(0)
        with torch.no_grad():
            output = self.network(torch.tensor([list(tokens)]), use_cache=True, logits_to_keep=1, **arguments)
        session.num_tokens = stop
        session.logits = output.logits[0, -1]
