from __future__ import annotations

import pytest

from kvweave.core.array import Axis
from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.sharding import axis_interval, box_of, token_share
from kvweave.core.spec import FullAttentionSpec, MambaSpec, MLAAttentionSpec
from kvweave.core.tokens import TokenShare
from kvweave.errors import LayoutError
from tests.core.engines import BFLOAT16, FLOAT32, fits

SIZES = [(units, tp) for units in range(1, 17) for tp in range(1, 17)]


def held(units: int, tp: int, unit: int = 1, **config: object) -> list[Interval]:
    axis = Axis("head", units * unit, units)
    return [axis_interval(axis, "k", ParallelConfig(tp, **config), rank) for rank in range(tp)]


@pytest.mark.parametrize(("units", "tp"), [size for size in SIZES if fits(*size)])
def test_shares_are_equal_in_order_and_cover_the_axis(units: int, tp: int) -> None:
    shares = held(units, tp, unit=3)
    assert {len(share) for share in shares} == {3 * max(1, units // tp)}
    assert shares == sorted(shares)
    assert {i for share in shares for i in range(share.start, share.stop)} == set(range(3 * units))


@pytest.mark.parametrize(("units", "tp"), [size for size in SIZES if size[0] < size[1] and fits(*size)])
def test_replicas_are_neighbours(units: int, tp: int) -> None:
    assert [share.start for share in held(units, tp)] == [rank * units // tp for rank in range(tp)]


@pytest.mark.parametrize(("units", "tp"), [size for size in SIZES if not fits(*size)])
def test_sizes_that_no_engine_could_build_are_refused_with_both_named(units: int, tp: int) -> None:
    with pytest.raises(
        LayoutError, match=f"k, axis head: {units} units over tp={tp}: .* does not divide .*stated: head"
    ):
        held(units, tp)


def test_stated_intervals_take_the_place_of_the_rule() -> None:
    stated = {"head": (Interval(0, 2), Interval(2, 3))}
    assert held(3, 2, unit=4, stated=stated) == [Interval(0, 8), Interval(8, 12)]


def test_stated_intervals_leave_arrays_with_other_units_alone() -> None:
    stated = {"head": (Interval(0, 2), Interval(2, 3))}
    assert held(8, 2, stated=stated) == [Interval(0, 4), Interval(4, 8)]


def test_an_axis_without_units_is_whole_everywhere() -> None:
    latent = MLAAttentionSpec(6).arrays()[0]
    assert {box_of(latent, ParallelConfig(4), RankCoordinates(tp=tp)) for tp in range(4)} == {(Interval(0, 6),)}


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_rank_holds_the_groups_that_its_heads_use(groups: int, tp: int) -> None:
    arrays = {a.part: a for a in MambaSpec.mamba2(16, 1, groups, 1, 2, BFLOAT16, FLOAT32).arrays()}
    for rank in (RankCoordinates(tp=tp_rank) for tp_rank in range(tp)):
        heads, used = (box_of(arrays[part], ParallelConfig(tp), rank)[0] for part in ("ssm", "conv.b"))
        assert {head * groups // 16 for head in range(heads.start, heads.stop)} == set(range(used.start, used.stop))


def test_tokens_are_dealt_by_the_rank_of_the_context_group() -> None:
    latent, config = MLAAttentionSpec(6).arrays()[0], ParallelConfig(tp=4, dcp=2, interleave=8)
    found = [token_share(latent, config, rank) for rank in config.ranks()]
    assert found == [TokenShare(2, tp % 2, 8) for tp in range(4)]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(MLAAttentionSpec(4, tokens_per_state=4), id="compressed"),
        pytest.param(MLAAttentionSpec(4, sliding_window=8), id="windowed"),
        pytest.param(FullAttentionSpec(1, 2, dcp_sharded=False), id="stated"),
    ],
)
def test_arrays_that_context_parallelism_leaves_alone(spec: MLAAttentionSpec) -> None:
    assert token_share(spec.arrays()[0], ParallelConfig(tp=2, dcp=2), RankCoordinates()) == TokenShare()


def test_compressed_entries_are_dealt_by_the_tokens_of_a_turn() -> None:
    (latent,) = MLAAttentionSpec(8, tokens_per_state=4, dcp_sharded=True).arrays()
    config = ParallelConfig(tp=2, dcp=2, interleave=8)
    assert token_share(latent, config, RankCoordinates(tp=1)) == TokenShare(2, 1, 2)


def test_a_turn_that_ends_inside_a_compressed_entry_is_refused() -> None:
    (latent,) = MLAAttentionSpec(8, tokens_per_state=4, dcp_sharded=True).arrays()
    with pytest.raises(LayoutError, match="interleave 6 is no multiple of the 4 tokens of an entry"):
        token_share(latent, ParallelConfig(tp=2, dcp=2, interleave=6), RankCoordinates())


def test_a_state_has_no_token_share() -> None:
    state = MambaSpec.mamba1(4, 1, 2, BFLOAT16, FLOAT32).arrays()[0]
    assert token_share(state, ParallelConfig(tp=2, dcp=2), RankCoordinates()) is None
