"""Which pairs the sweep runs: per model the shapes of the two sides and the prompts, and which servers stand together.

Every model runs tp 1>1, 2>1 and 1>2 (SmolLM2 has three KV heads: 3 instead of 2). What a model's caches make
interesting comes on top: other blocks and stages for Llama, blocks across a window and the window's edges for the
sliding models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.e2e.vllm.prompts import edge_lengths, prompt_of, sweep_prompts

WINDOW = 128
"""The window of the sliding models in ``models.MODELS``."""
DEFAULT_BLOCK = 128
"""Tokens of a block on a CPU unless others are stated (vLLM's ``CpuPlatform``): such servers serve other pairs too."""
MOST_WORKERS = 6
"""Workers that two cores and 16 GB start and run together in reasonable time."""


@dataclass(frozen=True)
class Pair:
    """Two shapes as ``servers.deploy`` takes them; ``name`` is what the table shows."""

    model: str
    name: str
    prefill: str
    decode: str
    edges: tuple[int, ...] = ()
    """Block sizes whose edges meet the window's at the prompts' ends; empty: the twenty prompts of every pair."""

    @cached_property
    def prompts(self) -> list[list[int]]:
        """What is asked, as token ids."""
        if not self.edges:
            return sweep_prompts()
        return [prompt_of(length) for length in edge_lengths(WINDOW, self.edges)]


@dataclass(frozen=True, order=True)
class Place:
    """One server of the sweep: its side and its shape."""

    side: str
    shape: str

    @property
    def workers(self) -> int:
        """Processes that compute."""
        stated = dict(part.split("=") for part in self.shape.split(","))
        return int(stated.get("tp", 1)) * int(stated.get("pp", 1))

    def __str__(self) -> str:
        return f"{self.side} {self.shape}"


def places(pair: Pair, both_ways: bool = False) -> tuple[Place, Place]:
    """The two servers of a pair. ``both_ways``: one server prefills for some pairs and decodes for others.

    Pipeline stages keep their side: a connector may allow them on one side only.
    """
    side = "decode" if both_ways and pair.prefill != pair.decode and "pp=" not in pair.prefill else "prefill"
    return Place(side, pair.prefill), Place("decode", pair.decode)


def waves(pairs: Iterable[Pair], both_ways: bool = False, most_workers: int = MOST_WORKERS) -> list[list[Pair]]:
    """The pairs in runs whose servers stand together, in order; no run has more workers than ``most_workers``."""
    found: list[list[Pair]] = []
    standing: set[Place] = set()
    for pair in pairs:
        wanted = standing | set(places(pair, both_ways))
        if not found or sum(place.workers for place in wanted) > most_workers:
            found.append([])
            wanted = set(places(pair, both_ways))
        found[-1].append(pair)
        standing = wanted
    return found


def _tensor_parallel(model: str, size: int = 2) -> list[Pair]:
    shapes = ((1, 1), (size, 1), (1, size))
    return [Pair(model, f"tp {one}>{other}", f"tp={one}", f"tp={other}") for one, other in shapes]


def _blocks(model: str, prefill: int, decode: int, edges: tuple[int, ...] = ()) -> Pair:
    name = f"block {prefill}>{decode}" + (", edges" if edges else "")
    one, other = ("tp=1" if block == DEFAULT_BLOCK else f"tp=1,block={block}" for block in (prefill, decode))
    return Pair(model, name, one, other, edges)


def _sliding(model: str) -> list[Pair]:
    return [*_tensor_parallel(model), Pair(model, "tp 1>1, edges", "tp=1", "tp=1", (DEFAULT_BLOCK,))]


PAIRS: Sequence[Pair] = (
    *_tensor_parallel("llama"),
    _blocks("llama", 64, 128),
    _blocks("llama", 128, 64),
    _blocks("llama", 32, 96),
    Pair("llama", "pp 2>1", "pp=2", "tp=1"),
    Pair("llama", "pp 1>2", "tp=1", "pp=2"),
    *_tensor_parallel("llama-2heads"),
    *_tensor_parallel("llama-1head"),
    *_tensor_parallel("smollm2", 3),
    *_sliding("gemma3"),
    _blocks("gemma3", 32, 128),
    _blocks("gemma3", 32, 128, (32, 128)),
    *_sliding("gpt-oss"),
    *_tensor_parallel("granite-4"),
    *_tensor_parallel("falcon-h1"),
    *_tensor_parallel("nemotron-h"),
    *_tensor_parallel("mamba2"),
    *_tensor_parallel("qwen3-next"),
    *_tensor_parallel("deepseek-v2"),
)

_CORE = {
    "llama": ("tp 2>1", "tp 1>2", "block 64>128", "pp 2>1"),
    "gemma3": ("block 32>128",),
    "granite-4": ("tp 2>1",),
}
CORE: Sequence[Pair] = tuple(pair for pair in PAIRS if pair.name in _CORE.get(pair.model, ()))
"""What continuous integration runs: one pair of each kind."""


def chosen(pairs: Sequence[Pair], models: Sequence[str] = (), names: Sequence[str] = ()) -> list[Pair]:
    """The pairs of these models whose name contains one of ``names``; all where nothing is stated.

    Raises ``ValueError`` for a model that no pair has.
    """
    known = {pair.model for pair in pairs}
    if unknown := sorted(set(models) - known):
        raise ValueError(f"no such model: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [
        pair
        for pair in pairs
        if (not models or pair.model in models) and (not names or any(name in pair.name for name in names))
    ]
