"""The main job, end to end: one process prefills, another of a different shape decodes, and the tokens are compared.

Nothing here is special to the demonstration: the engines are the embedded ones, the bytes move over NIXL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from kvweave import models
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.plan import plan_transfer
from kvweave.engines.hf.engine import Answer, EngineShape
from kvweave.engines.hf.model_source import SMOLLM2, model_folder
from kvweave.engines.hf.process import EngineProcess
from kvweave.errors import ConfigurationError, LayoutError
from kvweave.runtime import Delivered, new_transfer_id
from kvweave.runtime.closing import Closing

QUESTION = "What is the capital of France, and what is it known for? Answer in one sentence."
LONG_TEXT = (
    "A cache is a set of named arrays; a rank holds a box of each; a plan is the intersection of boxes, and it is "
    "proved before it is used. Whoever moves a cache must say which bytes, once each, and no other byte."
)
"""For tiny models: over 128 tokens of one byte, so that windows move on and compressed groups close."""

_SPARE_BLOCKS = 8

Tell = Callable[[str], None]
"""Takes one line of progress."""


@dataclass(frozen=True, slots=True)
class Contact:
    """What one decode rank reads for one cache group: from which prefill ranks."""

    target: str
    group: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One run. ``difference`` is the position of the first token that differs from one engine's, None if none does.

    ``early_bytes`` of all bytes moved while the prompt was being prefilled.
    """

    model: str
    prompt_tokens: int
    answer: str
    tokens: tuple[int, ...]
    expected: tuple[int, ...]
    contacts: tuple[Contact, ...]
    nbytes: int
    rows: int
    prefill_seconds: float
    transfer_seconds: Mapping[str, float]
    decode_seconds: float
    blocks_left: int
    early_bytes: int = 0

    @property
    def difference(self) -> int | None:
        """Position of the first differing token."""
        longest = max(len(self.tokens), len(self.expected))
        return next((n for n in range(longest) if self.tokens[n : n + 1] != self.expected[n : n + 1]), None)

    @property
    def ok(self) -> bool:
        """Whether the tokens are equal and every block was freed."""
        return self.difference is None and self.blocks_left == 0


class Stage(Closing):
    """Two engine processes that stay up while models and shapes change; ``start`` makes each from its name."""

    def __init__(self, tell: Tell = lambda _: None, start: Callable[[str], EngineProcess] = EngineProcess) -> None:
        self._tell = tell
        self._prefill = start("prefill")
        self._decode = start("decode")
        self._loaded = ""

    def run(
        self,
        model: str,
        prefill: EngineShape,
        decode: EngineShape,
        prompt: str | None = None,
        max_new_tokens: int = 64,
        chunks: int = 1,
    ) -> Demonstration:
        """Prefills ``prompt`` in one shape, decodes in the other, and compares with one engine.

        With several ``chunks`` each is moved while the next one is prefilled. The engines then run at the same time,
        and ``prefill_seconds`` and ``decode_seconds`` both last until their side is done.

        Raises our errors: ``LayoutError`` for a shape the model does not allow, ``IncompatibleLayouts`` for a pair that
        does not fit, ``ConfigurationError`` for an empty prompt, ``EngineProcessError`` if a side fails.
        """
        folder = model_folder(model, self._tell)
        contacts = tuple(_contacts(models.load(folder, dtype="float32"), prefill, decode))
        self._load(model, folder)
        tokens = self._prefill.encode(_prompt(model, prompt))
        if not tokens:
            raise ConfigurationError(f"prompt: {prompt!r} has no tokens; ask something")
        self._tell("opening the engines")
        self._decode.start_decode(_sized(decode, len(tokens)))  # first, as in close: it takes an earlier one's place
        address = self._prefill.start_prefill(_sized(prefill, len(tokens)))
        chunk_tokens = -(-len(tokens) // chunks) if chunks > 1 else None
        if chunk_tokens is None:
            answer, prefill_seconds, decode_seconds = self._one_after_the_other(tokens, max_new_tokens)
        else:
            answer, prefill_seconds, decode_seconds = self._at_once(address, tokens, max_new_tokens, chunk_tokens)
        self._tell("answering in one engine for comparison")
        expected = self._decode.reference(tokens, max_new_tokens, chunk_tokens)
        delivered = answer.delivered
        return Demonstration(
            model=model,
            prompt_tokens=len(tokens),
            answer=self._decode.text(answer.tokens),
            tokens=answer.tokens,
            expected=tuple(expected),
            contacts=contacts if delivered else (),
            nbytes=delivered.nbytes if delivered else 0,
            rows=delivered.num_rows if delivered else 0,
            early_bytes=delivered.early_bytes if delivered else 0,
            prefill_seconds=prefill_seconds,
            transfer_seconds=_stages(delivered),
            decode_seconds=decode_seconds,
            blocks_left=self._prefill.blocks_in_use() + self._decode.blocks_in_use(),
        )

    def _one_after_the_other(self, tokens: list[int], max_new_tokens: int) -> tuple[Answer, float, float]:
        """The answer, and the seconds of prefill and decode."""
        started = perf_counter()
        self._tell(f"prefilling {len(tokens)} tokens")
        params = self._prefill.prefill("demo", tokens)
        prefilled = perf_counter()
        self._tell("moving the cache and decoding")
        answer = self._decode.decode(tokens, params, max_new_tokens)
        moving = sum(_stages(answer.delivered).values())
        return answer, prefilled - started, perf_counter() - prefilled - moving

    def _at_once(
        self, address: str, tokens: list[int], max_new_tokens: int, chunk_tokens: int
    ) -> tuple[Answer, float, float]:
        """The same of a prompt that is followed while it is prefilled."""
        transfer_id, started = new_transfer_id(), perf_counter()
        self._tell(f"prefilling {len(tokens)} tokens in chunks of {chunk_tokens}, and moving them")
        with ThreadPoolExecutor(1) as other:
            answering = other.submit(self._decode.decode_followed, tokens, transfer_id, address, max_new_tokens)
            self._prefill.prefill_in_chunks("demo", tokens, transfer_id, chunk_tokens)
            prefilled = perf_counter()
            answer = answering.result()
        return answer, prefilled - started, perf_counter() - started

    def close(self) -> None:
        """Ends both processes; the one that reads first, so that it does not miss the other."""
        self._decode.close()
        self._prefill.close()

    def _load(self, model: str, folder: Path) -> None:
        if model == self._loaded:
            return
        self._loaded = ""
        self._tell(f"loading {model} in both processes")
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda process: process.load(folder), (self._prefill, self._decode)))
        self._loaded = model


def _stages(delivered: Delivered | None) -> dict[str, float]:
    """How long each stage of the transfer took; they follow one another."""
    if delivered is None:
        return {}
    return {stage: delivered.seconds[stage] for stage in ("peer", "claim", "read", "grant")}


def _sized(shape: EngineShape, num_tokens: int) -> EngineShape:
    """The shape with a pool just large enough for the request and some spare blocks."""
    blocks = -(-num_tokens // shape.cache.block_size) + _SPARE_BLOCKS
    return replace(shape, cache=replace(shape.cache, num_blocks=blocks))


def _prompt(model: str, prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    return QUESTION if model == SMOLLM2 else LONG_TEXT


def _layout(side: str, cache: ModelCache, shape: EngineShape) -> EngineLayout:
    """Raises ``LayoutError`` that names the side."""
    try:
        return EngineLayout.build(cache, shape.parallel, shape.cache)
    except LayoutError as error:
        raise LayoutError(f"{side}: {error}") from None


def _contacts(cache: ModelCache, prefill: EngineShape, decode: EngineShape) -> Iterator[Contact]:
    target = _layout("decode", cache, decode)
    plan = plan_transfer(_layout("prefill", cache, prefill), target)
    for rank in target.ranks:
        for group, sources in plan.sources(rank).items():
            yield Contact(str(rank.coordinates), group, tuple(str(source) for source in sources))
