"""One request moved by both sides in labelled memory, and what each placed wrong."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

import kvweave.core.spec as kv
from tests.parity import incumbent, memory
from tests.parity.cases import Case
from tests.parity.incumbent import Transfer

NUM_TOKENS = 12


@dataclass(frozen=True)
class Outcome:
    """Wrong cells of each side, over all decode ranks; a cell is a conv channel of a state, else a byte.

    ``same_reads``: both took every byte from the same byte of the same prefill rank.
    """

    vllm_wrong: int
    kvweave_wrong: int
    conv_channels: int
    same_reads: bool

    @property
    def figure(self) -> str:
        if not self.vllm_wrong:
            return "both place all bytes right, vLLM reads some of them more than once"
        return (
            f"vLLM places {self.vllm_wrong} of {self.conv_channels} conv channels wrong, kvweave {self.kvweave_wrong}"
        )


def transfer_of(case: Case, pair: tuple[int, int], block_sizes: tuple[int, int]) -> Transfer:
    """A request whose tables are in no order."""
    source, target = (
        tuple([state] if isinstance(group, kv.MambaSpec) else order[: -(-NUM_TOKENS // size)] for group in case.groups)
        for state, order, size in zip((5, 0), ([2, 0, 3, 1, 4, 6], [4, 1, 2, 3, 0, 5]), block_sizes, strict=True)
    )
    return Transfer(pair, block_sizes, 8, source, target)


def compare(vllm: SimpleNamespace, case: Case, pair: tuple[int, int], block_sizes: tuple[int, int] = (4, 4)) -> Outcome:
    """Run both and count."""
    transfer = transfer_of(case, pair, block_sizes)
    decode = memory.sides(transfer)[1]
    ours, theirs = memory.kvweave_results(case, transfer, NUM_TOKENS), vllm_results(vllm, case, transfer)
    vllm_wrong = kvweave_wrong = channels = 0
    same = True
    for rank in range(pair[1]):
        for key, wanted in memory.rank_labels(case, decode, rank, NUM_TOKENS).items():
            vllm_wrong += _wrong(key[1], theirs[rank][key], wanted)
            kvweave_wrong += _wrong(key[1], ours[rank][key], wanted)
            channels += wanted.shape[1] if key[1].startswith("conv") else 0
            same = same and np.array_equal(ours[rank][key], theirs[rank][key])
    return Outcome(vllm_wrong, kvweave_wrong, channels, same)


def vllm_results(vllm: SimpleNamespace, case: Case, transfer: Transfer) -> list[memory.Views]:
    """Every decode rank's memory after vLLM's reads."""
    prefill, decode = memory.sides(transfer)
    source_regions = incumbent.Regions.of(vllm, case, prefill.tp, prefill.block_size)
    target_regions = incumbent.Regions.of(vllm, case, decode.tp, decode.block_size)
    sources = [source_regions.memory(transfer.num_blocks) for _ in range(prefill.tp)]
    for rank, labels in enumerate(sources):
        memory.fill(case, memory.vllm_views(case, prefill, rank, source_regions, labels), prefill, rank, NUM_TOKENS)
    results = []
    for rank in range(decode.tp):
        received = incumbent.run(vllm, case, transfer, rank, sources)
        views = memory.vllm_views(case, decode, rank, target_regions, received)
        results.append(memory.collect(case, views, decode, NUM_TOKENS))
    return results


def _wrong(part: str, labels: incumbent.Labels, wanted: incumbent.Labels) -> int:
    wrong = (labels < 0) | (labels % memory.RANK != wanted)
    return int(wrong.any(axis=(0, 2, 3)).sum() if part.startswith("conv") else wrong.sum())
