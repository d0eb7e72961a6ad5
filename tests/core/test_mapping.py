"""Which ranks a rank reads: every line of the head map, MLA, states, mixtures, dcp, sizes that do not divide.

Wanted answers are computed from the definition (rank r of tp holds head ``r * K // tp``, or its share of the heads).
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvweave.core.array import Axis, DType
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.mapping import CacheGroup, TPMapping, compute_tp_mapping
from kvweave.core.model import CacheLayer, KVCacheGroup, ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.spec import (
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    StatePart,
    UniformTypeKVCacheSpecs,
)
from kvweave.core.topology import TransferTopology
from kvweave.errors import ConfigurationError, LayoutError

HALF, FULL = DType.of("bfloat16"), DType.of("float32")
LATENT = MLAAttentionSpec(12, HALF)
INDEXER = MLAAttentionSpec(8, HALF, part="indexer")
WINDOWED = MLAAttentionSpec(16, HALF, sliding_window=8)
RATES = (MLAAttentionSpec(16, HALF, 4), MLAAttentionSpec(8, HALF, 4), MLAAttentionSpec(16, HALF, 128))
OPEN_GROUP = CircularBufferSpec((StatePart("buffer.kv", (Axis("slot", 4), Axis("dim", 8)), FULL),))
SIZES = (1, 2, 3, 4, 6, 8)


def heads(count: int) -> FullAttentionSpec:
    return FullAttentionSpec(count, 4, dtype=HALF)


def mamba2(groups: int) -> MambaSpec:
    return MambaSpec.mamba2(24, 4, groups, 8, 4, HALF, FULL)


def mapping(prefill: int, decode: int, rank: int, *groups: CacheGroup, dcp: tuple[int, int] = (1, 1)) -> TPMapping:
    topology = TransferTopology(
        engine_id="decode", tp_rank=rank, tp_size=decode, block_size=16, total_num_kv_heads=1, dcp_size=dcp[1],
    )  # fmt: skip
    return compute_tp_mapping(topology, prefill, groups, remote_dcp_size=dcp[0])


def held(count: int, tp: int, rank: int) -> range:
    first = rank * count // tp
    return range(first, first + max(1, count // tp))


def fits(count: int, *sizes: int) -> bool:
    return all(count % tp == 0 or tp % count == 0 for tp in sizes)


HEAD_MAP = [
    pytest.param(2, 1, 4, [[0], [0], [0], [0]], [0, 0, 1, 1], id="K 2, 1>4: two ranks share a slot of the one source"),
    pytest.param(2, 4, 1, [[0, 2]], [0], id="K 2, 4>1: one of each pair of replicas"),
    pytest.param(2, 8, 1, [[0, 4]], [0], id="K 2, 8>1: one of each four replicas"),
    pytest.param(4, 8, 2, [[0, 2], [4, 6]], [0, 0], id="K 4, 8>2: each head once"),
    pytest.param(4, 2, 8, [[0]] * 4 + [[1]] * 4, [0, 0, 1, 1] * 2, id="K 4, 2>8: four ranks on each source"),
    pytest.param(8, 8, 16, [[n // 2] for n in range(16)], [0] * 16, id="K 8, 8>16: two ranks on each source"),
    pytest.param(8, 16, 8, [[2 * n] for n in range(8)], [0] * 8, id="K 8, 16>8: one of each pair, never both"),
    pytest.param(3, 3, 1, [[0, 1, 2]], [0], id="K 3, 3>1"),
    pytest.param(3, 1, 3, [[0], [0], [0]], [0, 1, 2], id="K 3, 1>3"),
]


@pytest.mark.parametrize(("count", "prefill", "decode", "sources", "offsets"), HEAD_MAP)
def test_the_head_map(count: int, prefill: int, decode: int, sources: list[list[int]], offsets: list[int]) -> None:
    found = [mapping(prefill, decode, rank, heads(count)) for rank in range(decode)]
    assert [list(one.all_source_ranks) for one in found] == sources
    assert [one.rank_offset_factor for one in found] == offsets
    assert [one.rank_to_attention_slot for one in found] == [{rank: n for n, rank in enumerate(s)} for s in sources]


def test_three_heads_over_two_ranks_as_stated_are_each_read_once() -> None:
    model = ModelCache("m", 1, (KVCacheGroup("full", (CacheLayer("layer", 0, heads(3)),)),))
    stated = ParallelConfig(tp=2, stated={"head": (Interval(0, 2), Interval(2, 3))})
    plan = plan_transfer(EngineLayout.build(model, ParallelConfig(tp=3)), EngineLayout.build(model, stated))
    found = [[source.tp for source in plan.sources(RankCoordinates(tp=rank))["full"]] for rank in range(2)]
    assert found == [[0, 1], [2]]


counts, tensor_sizes = st.sampled_from((1, 2, 3, 4, 6, 8, 12, 16)), st.sampled_from(SIZES)


@given(counts, tensor_sizes, tensor_sizes)
def test_every_head_of_a_rank_is_read_from_one_source_that_holds_it(count: int, prefill: int, decode: int) -> None:
    assume(fits(count, prefill, decode))
    for rank in range(decode):
        found = mapping(prefill, decode, rank, heads(count)).all_source_ranks
        wanted = set(held(count, decode, rank))
        read = [wanted & set(held(count, prefill, source)) for source in found]
        assert all(read)
        assert Counter(head for piece in read for head in piece) == dict.fromkeys(wanted, 1)


@given(counts, tensor_sizes, tensor_sizes)
def test_slots_are_the_order_of_the_heads_that_the_sources_bring(count: int, prefill: int, decode: int) -> None:
    assume(fits(count, prefill, decode))
    for rank in range(decode):
        slots = mapping(prefill, decode, rank, heads(count)).rank_to_attention_slot
        assert slots is not None
        by_slot = sorted(slots, key=lambda source: slots[source])
        assert sorted(slots.values()) == list(range(len(slots)))
        assert [held(count, prefill, source).start for source in by_slot] == sorted(
            held(count, prefill, source).start for source in slots
        )


@given(counts, tensor_sizes, tensor_sizes)
def test_the_offset_leads_to_the_ranks_own_heads_inside_the_source(count: int, prefill: int, decode: int) -> None:
    assume(fits(count, prefill, decode))
    for rank in range(decode):
        found = mapping(prefill, decode, rank, heads(count))
        own = held(count, decode, rank)
        pieces = [(held(count, prefill, source), source) for source in found.all_source_ranks]
        firsts = {max(own.start, of.start) - of.start for of, _ in pieces}
        lengths = {min(own.stop, of.stop) - max(own.start, of.start) for of, _ in pieces}
        if found.rank_offset_factor is not None and len(lengths) == 1:
            assert firsts == {found.rank_offset_factor * lengths.pop()}


@given(counts, tensor_sizes, tensor_sizes)
def test_consumers_are_the_ranks_that_read_from_the_same_source(count: int, prefill: int, decode: int) -> None:
    assume(fits(count, prefill, decode))
    found = [mapping(prefill, decode, rank, heads(count)) for rank in range(decode)]
    readers = Counter(source for one in found for source in one.all_source_ranks)
    for one in found:
        wanted = {readers[source] for source in one.all_source_ranks}
        assert one.local_consumers == (wanted.pop() if len(wanted) == 1 else None)


@given(tensor_sizes, tensor_sizes, st.sampled_from([LATENT, INDEXER, WINDOWED, OPEN_GROUP, *RATES, heads(1)]))
def test_what_every_rank_holds_is_read_once_from_the_rank_of_the_tp_ratio(
    prefill: int, decode: int, spec: LayerSpec
) -> None:
    found = [mapping(prefill, decode, rank, spec) for rank in range(decode)]
    assert [one.all_source_ranks for one in found] == [(rank * prefill // decode,) for rank in range(decode)]


@given(tensor_sizes, tensor_sizes)
def test_reads_of_a_latent_spread_evenly_over_the_replicas(prefill: int, decode: int) -> None:
    found = [mapping(prefill, decode, rank, LATENT) for rank in range(decode)]
    readers = Counter(one.all_source_ranks[0] for one in found)
    assert len(readers) == min(prefill, decode)
    assert max(readers.values()) - min(readers.values()) <= 1


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2), (2, 4), (4, 2), (8, 1), (2, 8), (4, 4)])
def test_a_state_is_read_from_every_rank_that_has_a_share_of_it(groups: int, prefill: int, decode: int) -> None:
    for rank in range(decode):
        shares = [source for source in range(prefill) if meets(held(24, decode, rank), held(24, prefill, source))]
        assert mapping(prefill, decode, rank, mamba2(groups)).all_source_ranks == tuple(shares)


def meets(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


@pytest.mark.parametrize("state", [mamba2(8), MambaSpec.kda(24, 4, 4, HALF, FULL)], ids=["Mamba2", "KDA"])
def test_a_latent_is_read_once_and_the_state_beside_it_from_every_source(state: MambaSpec) -> None:
    first, second = (mapping(4, 2, rank, LATENT, state) for rank in range(2))
    assert first.source_ranks_per_group == ((0,), (0, 1))
    assert second.source_ranks_per_group == ((2,), (2, 3))
    assert first.rank_to_attention_slot == {0: 0, 1: 0}


def test_heads_come_from_four_ranks_and_the_indexer_beside_them_from_one() -> None:
    found = mapping(4, 1, 0, heads(4), INDEXER)
    assert found.source_ranks_per_group == ((0, 1, 2, 3), (0,))


def test_sources_of_the_state_alone_take_the_slot_of_the_heads_they_hold() -> None:
    found = mapping(8, 1, 0, heads(2), mamba2(8))
    assert found.source_ranks_per_group == ((0, 4), tuple(range(8)))
    assert found.rank_to_attention_slot == {source: source // 4 for source in range(8)}


def test_groups_of_different_head_counts_have_a_map_each() -> None:
    sliding, full = SlidingWindowSpec(8, 256, sliding_window=16), FullAttentionSpec(1, 512)
    found = mapping(4, 2, 1, sliding, full)
    assert found.source_ranks_per_group == ((2, 3), (2,))
    assert [group.attention_slots for group in found.groups] == [{2: 0, 3: 1}, {2: 0, 3: 0}]
    assert found.rank_to_attention_slot is None


def test_an_offset_that_the_groups_do_not_share_is_given_per_group() -> None:
    found = mapping(1, 4, 3, SlidingWindowSpec(8, 256, sliding_window=16), FullAttentionSpec(2, 512))
    assert [group.offset_factor for group in found.groups] == [3, 1]
    assert found.rank_offset_factor is None


@pytest.mark.parametrize(("prefill", "decode"), [(8, 4), (4, 8)])
def test_deepseek_v4_reads_every_array_once_from_the_rank_of_the_tp_ratio(prefill: int, decode: int) -> None:
    mixed = UniformTypeKVCacheSpecs({str(number): spec for number, spec in enumerate((*RATES, OPEN_GROUP))})
    for rank in range(decode):
        found = mapping(prefill, decode, rank, WINDOWED, mixed)
        assert found.source_ranks_per_group == ((rank * prefill // decode,),) * 2


LAYERS = [heads(4), LATENT, mamba2(8)]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)], ids=["heads first", "latent first", "state first"])
def test_a_group_that_mixes_kinds_takes_every_layer_by_its_own_spec(order: tuple[int, ...]) -> None:
    mixed = UniformTypeKVCacheSpecs({str(number): LAYERS[number] for number in order})
    apart = mapping(4, 2, 1, *LAYERS)
    found = mapping(4, 2, 1, mixed)
    assert found.all_source_ranks == apart.all_source_ranks == (2, 3)
    assert found.rank_to_attention_slot == apart.rank_to_attention_slot


def test_a_models_group_a_wrapper_and_a_spec_are_the_same_group() -> None:
    layers = tuple(CacheLayer(f"layer.{number}", number, heads(4)) for number in range(3))
    wrapped = UniformTypeKVCacheSpecs({layer.name: layer.spec for layer in layers})
    found = [mapping(8, 2, 1, group) for group in (heads(4), KVCacheGroup("full", layers), wrapped)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("dcp", "sources"),
    [((4, 2), [(0, 2), (1, 3)]), ((4, 1), [(0, 1, 2, 3)] * 2), ((1, 2), [(0,), (2,)]), ((2, 2), [(0,), (3,)])],
    ids=["4>2", "4>1", "1>2", "2>2"],
)
def test_tokens_dealt_out_come_from_the_ranks_that_hold_them(
    dcp: tuple[int, int], sources: list[tuple[int, ...]]
) -> None:
    assert [mapping(4, 2, rank, LATENT, dcp=dcp).all_source_ranks for rank in range(2)] == sources


@pytest.mark.parametrize(("prefill", "decode"), [(3, 2), (2, 3), (6, 4), (4, 6)])
def test_sizes_that_do_not_divide_one_another_have_a_mapping(prefill: int, decode: int) -> None:
    for rank in range(decode):
        wanted = [s for s in range(prefill) if meets(held(12, decode, rank), held(12, prefill, s))]
        found = mapping(prefill, decode, rank, heads(12))
        assert found.all_source_ranks == tuple(wanted)
        assert found.rank_to_attention_slot == {source: number for number, source in enumerate(wanted)}


def test_a_number_that_differs_between_sources_is_not_made_up() -> None:
    found = mapping(3, 2, 1, heads(12))
    assert found.all_source_ranks == (1, 2)
    assert (found.local_consumers, mapping(2, 3, 1, heads(18)).rank_offset_factor) == (None, None)


def test_no_groups_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="groups: none given"):
        mapping(2, 1, 0)


@pytest.mark.parametrize(("prefill", "decode"), [(3, 1), (1, 3)])
def test_a_split_that_no_engine_could_build_is_refused_with_both_numbers(prefill: int, decode: int) -> None:
    with pytest.raises(LayoutError, match="8 units over tp=3"):
        mapping(prefill, decode, 0, heads(8))
