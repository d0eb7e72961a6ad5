"""``compute_tp_mapping`` against vLLM's function of that name, field by field, for every pair that vLLM supports."""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

import kvweave.core.spec as kv
from kvweave.core.mapping import TPMapping, compute_tp_mapping
from kvweave.core.model import get_representative_spec_type
from kvweave.core.topology import RemoteEngine, TransferTopology
from kvweave.errors import ConfigurationError
from tests.parity import incumbent
from tests.parity.cases import ATTENTION, HYBRID, LATENT, Case, gqa, mamba2, pair_text, pairs_of
from tests.parity.differences import listed

FIELDS = (
    "source_ranks_per_group",
    "all_source_ranks",
    "rank_to_attention_slot",
    "rank_offset_factor",
    "local_consumers",
)
MLA_DCP = Case("MLA under dcp", (LATENT,), 128, is_mla=True)


def topology(case: Case, tp: int, rank: int, dcp: int = 1) -> TransferTopology:
    return TransferTopology(
        engine_id="decode", tp_rank=rank, tp_size=tp, block_size=16, total_num_kv_heads=case.num_kv_heads,
        is_mla=case.is_mla, dcp_size=dcp, interleave=16,
    )  # fmt: skip


def kvweave_mapping(case: Case, pair: tuple[int, int], rank: int, dcp: tuple[int, int] = (1, 1)) -> TPMapping:
    return compute_tp_mapping(topology(case, pair[1], rank, dcp[1]), pair[0], case.groups, remote_dcp_size=dcp[0])


def differing(ours: TPMapping, theirs: Any) -> set[str]:
    return {field for field in FIELDS if getattr(ours, field) != getattr(theirs, field)}


@pytest.mark.parametrize("case", [*ATTENTION, *HYBRID], ids=lambda case: case.name)
def test_every_field_agrees_except_where_the_list_says(vllm: SimpleNamespace, case: Case) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for pair in pairs_of(case):
        for rank in range(pair[1]):
            for field in differing(kvweave_mapping(case, pair, rank), incumbent.mapping(vllm, case, pair, rank)):
                found[field].add(pair_text(pair))
    assert found == {field: listed(case.name, field) for field in FIELDS if listed(case.name, field)}


DCP_SIZES = (1, 2, 4, 8)
DCP_PAIRS = [
    (pair, dcp)
    for pair in product(DCP_SIZES, DCP_SIZES)
    for dcp in product({1, pair[0]}, {1, pair[1]})
    if max(dcp) > 1
]  # fmt: skip


def test_latents_dealt_out_by_dcp_agree_except_in_the_slots(vllm: SimpleNamespace) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for pair, dcp in DCP_PAIRS:
        for rank in range(pair[1]):
            theirs = incumbent.mapping(vllm, MLA_DCP, pair, rank, dcp)
            for field in differing(kvweave_mapping(MLA_DCP, pair, rank, dcp), theirs):
                found[field].add(f"{pair[0]}/{dcp[0]}>{pair[1]}/{dcp[1]}")
    assert found == {field: listed(MLA_DCP.name, field) for field in FIELDS if listed(MLA_DCP.name, field)}


@pytest.mark.parametrize("pair", [(3, 2), (2, 3), (4, 6)], ids=pair_text)
def test_vllm_refuses_sizes_that_do_not_divide_and_kvweave_maps_them(
    vllm: SimpleNamespace, pair: tuple[int, int]
) -> None:
    case = Case("twelve heads", (gqa(12),), 12)
    with pytest.raises(AssertionError, match="not divisible"):
        incumbent.topology(vllm, case, pair[1], 0).tp_ratio(pair[0])
    read = {source for rank in range(pair[1]) for source in kvweave_mapping(case, pair, rank).all_source_ranks}
    assert read == set(range(pair[0]))


@pytest.mark.parametrize(
    "case", [Case("MLA", (LATENT,), 128, is_mla=True), Case("GQA", (gqa(8),), 8)], ids=lambda case: case.name
)
def test_describe_shows_what_vllm_shows(vllm: SimpleNamespace, case: Case) -> None:
    theirs = incumbent.topology(vllm, case, 4, 1)
    theirs.register_remote_engine("prefill", vllm.utils.EngineTransferInfo(8, 4096, 16, 1))
    ours = topology(case, 4, 1)
    ours.register_remote_engine("prefill", RemoteEngine(tp_size=8, block_size=16, block_bytes=4096))
    same = ("num_kv_heads", "local_tp", "remote_tp", "local_dcp", "remote_dcp", "local_rank")
    shown, wanted = (shown_fields(text.describe("prefill")) for text in (ours, theirs))
    assert {name: shown[name] for name in same} == {name: wanted[name] for name in same}


def shown_fields(line: str) -> dict[str, str]:
    inside = line.removeprefix("TransferTopology(").removesuffix(")")
    return dict(part.split("=") for part in inside.split(", "))


@pytest.mark.parametrize("inner", [gqa(2), LATENT, mamba2(1)], ids=lambda spec: type(spec).__name__)
def test_the_representative_type_is_the_same_for_groups_of_one_type(vllm: SimpleNamespace, inner: kv.LayerSpec) -> None:
    group = kv.UniformTypeKVCacheSpecs({"a": inner, "b": inner})
    theirs = vllm.nixl.get_representative_spec_type(vllm_group(vllm, incumbent.spec_type(vllm, inner)))
    assert get_representative_spec_type(group).__name__ == theirs.__name__


def test_a_mixed_group_is_answered_by_vllm_and_refused_by_kvweave(vllm: SimpleNamespace) -> None:
    mixed = vllm_group(vllm, vllm.specs.MLAAttentionSpec, vllm.specs.MambaSpec)
    assert vllm.nixl.get_representative_spec_type(mixed) is vllm.specs.MLAAttentionSpec
    with pytest.raises(ConfigurationError, match="mixes MLAAttentionSpec, MambaSpec"):
        get_representative_spec_type(kv.UniformTypeKVCacheSpecs({"a": LATENT, "b": mamba2(1)}))


def vllm_group(vllm: SimpleNamespace, *types: type) -> Any:
    layers = {str(number): kind.__new__(kind) for number, kind in enumerate(types)}
    group = vllm.specs.UniformTypeKVCacheSpecs.__new__(vllm.specs.UniformTypeKVCacheSpecs)
    object.__setattr__(group, "kv_cache_specs", layers)
    return group
