"""Which bytes go where: vLLM's own descriptor functions against kvweave's rows, in labelled memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import kvweave.core.spec as kv
from tests.parity.cases import ATTENTION, HYBRID, REAL_CONV, Case, pair_text, pairs_of
from tests.parity.comparison import compare
from tests.parity.differences import DIFFERENCES, Figures, listed

SIZES = (1, 2, 3, 4, 6, 8)
PLAIN = (kv.FullAttentionSpec, kv.MLAAttentionSpec, kv.MambaSpec)
CASES = [case for case in (*ATTENTION, *HYBRID, *REAL_CONV) if all(isinstance(group, PLAIN) for group in case.groups)]
COMPARED = [
    pytest.param(case, pair, id=f"{case.name}, {pair_text(pair)}") for case in CASES for pair in pairs_of(case, SIZES)
]
LARGER_BLOCKS = [
    pytest.param(case, pair, blocks, id=f"{case.name}, {pair_text(pair)}, block {blocks[0]}>{blocks[1]}")
    for case in CASES if len(case.groups) == 1 or case.mamba_type == "MAMBA1"
    for pair in pairs_of(case, (1, 2, 4)) if case.is_mla or pair[0] <= pair[1]
    for blocks in ((4, 8), (2, 8))
]  # fmt: skip


@pytest.mark.parametrize(("case", "pair"), COMPARED)
def test_both_read_the_same_bytes_except_where_the_list_says(
    vllm: SimpleNamespace, figures: Figures, case: Case, pair: tuple[int, int]
) -> None:
    outcome = compare(vllm, case, pair)
    known = {what for what in ("bytes", "reads") if pair_text(pair) in listed(case.name, what)}
    if known:
        figures[case.name, pair_text(pair)] = outcome.figure
    assert outcome.kvweave_wrong == 0
    assert outcome.same_reads == (not known)
    assert (outcome.vllm_wrong > 0) == ("bytes" in known)


@pytest.mark.parametrize(("case", "pair", "blocks"), LARGER_BLOCKS)
def test_larger_decode_blocks_end_with_the_same_bytes(
    vllm: SimpleNamespace, case: Case, pair: tuple[int, int], blocks: tuple[int, int]
) -> None:
    outcome = compare(vllm, case, pair, blocks)
    assert (outcome.same_reads, outcome.vllm_wrong, outcome.kvweave_wrong) == (True, 0, 0)


@pytest.mark.parametrize(
    ("groups", "pair", "wrong", "channels"),
    [(1, (2, 1), 192, 2304), (1, (1, 2), 384, 2560), (4, (8, 4), 768, 3072), (4, (2, 8), 1792, 4096)],
    ids=["P2>D1", "P1>D2", "P8>D4", "P2>D8"],
)
def test_replicated_groups_lose_as_many_channels_as_measured(
    vllm: SimpleNamespace, groups: int, pair: tuple[int, int], wrong: int, channels: int
) -> None:
    case = next(case for case in REAL_CONV if case.name.endswith(f"{groups} groups"))
    outcome = compare(vllm, case, pair)
    assert (outcome.vllm_wrong, outcome.kvweave_wrong, outcome.conv_channels) == (wrong, 0, channels)


def test_every_listed_pair_of_bytes_is_compared() -> None:
    compared = {(case.name, pair_text(pair)) for case in CASES for pair in pairs_of(case, SIZES)}
    claimed = {(entry.case, pair) for entry in DIFFERENCES if entry.what in ("bytes", "reads") for pair in entry.pairs}
    assert claimed <= compared
