"""Runs a transformers model on the CPU, one request at a time, and exchanges its cache as logical arrays.

::

    prefill engine   session = runner.prefill(tokens[:-1]);  captured = runner.capture(session)
    decode engine    session = runner.restore(captured);                runner.generate(tokens, 32, session)

Everything is float32 and greedy, so the tokens of a split run can be compared with those of one engine,
``runner.reference``, which computes in the same steps: the prompt without its last token at once, then token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvweave.core.model import ModelCache
from kvweave.core.spec import MambaSpec
from kvweave.engines.hf import bridge
from kvweave.engines.hf.captured import CapturedCache
from kvweave.errors import LocalProtocolError


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


@dataclass(slots=True)
class ModelRunner:
    """A loaded transformers model and the description of what it caches."""

    network: Any
    model: ModelCache
    config: Any = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.network.config.get_text_config(decoder=True)

    @staticmethod
    def load(path: str | Path, model: ModelCache, threads: int = 1) -> ModelRunner:
        """Loads a model folder in float32. ``threads`` sets torch's thread count for the whole process."""
        torch.set_num_threads(threads)
        network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        return ModelRunner(network.eval(), model)

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
        """Every logical array of the session, named as in the model's specs, each a copy."""
        return bridge.capture(session.cache, self.model, self.config, session.num_tokens)

    def restore(self, captured: CapturedCache) -> Session:
        """A session that has seen the captured tokens. Of windowed arrays the tokens still needed are enough."""
        session = self.start()
        bridge.restore(session.cache, self.model, self.config, captured)
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

    def reference(self, tokens: Sequence[int], max_new_tokens: int, stop_tokens: Sequence[int] = ()) -> list[int]:
        """What one engine answers, in the steps of a split run: all but the last prompt token at once, then singly."""
        session = self.prefill(tokens[:-1]) if len(tokens) > 1 else self.start()
        return self.generate(tokens, max_new_tokens, session, stop_tokens)

    @property
    def continues_in_chunks(self) -> bool:
        """Whether several tokens at once may follow a state; transformers' Mamba1 scan always starts from zero."""
        return not any(
            isinstance(layer.spec, MambaSpec) and layer.spec.mamba_type == "mamba1" for layer in self.model.layers()
        )

    def _forward(self, session: Session, tokens: Sequence[int]) -> None:
        with torch.no_grad():
            output = self.network(
                input_ids=torch.tensor([list(tokens)]), cache=session.cache, use_cache=True, logits_to_keep=1
            )
        session.num_tokens += len(tokens)
        session.logits = output.logits[0, -1]
