from __future__ import annotations

import math

import numpy as np
import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from kvweave.errors import BlockTableError, PlanError
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

MODEL = model_of(heads_of(2), heads_of(2))
RANK = RankCoordinates()


def plan_of(block: int = 16, other: int = 16, **decode: object) -> TransferPlan:
    cache = [CacheConfig(size, num_blocks=4096 // size) for size in (block, other)]
    return plan_transfer(engine(MODEL, cache=cache[0]), engine(MODEL, cache=cache[1], **decode))


def describe(source: object, target: object, num_tokens: object = 20, **options: object) -> RequestDescriptors:
    return plan_of().descriptors(RANK, source, target, num_tokens, **options)


@pytest.mark.parametrize("tokens", [256, 1024, 4096])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "LHBNC"])
def test_rows_of_contiguous_blocks_do_not_grow_with_the_tokens(layout: str, tokens: int) -> None:
    side = engine(model_of(*[MLAAttentionSpec(4)] * 2), cache=CacheConfig(16, layout, num_blocks=256))
    blocks = np.arange(tokens // 16)
    rows = plan_transfer(side, side).descriptors(RANK, blocks, blocks, tokens)
    assert rows.num_rows <= 2 and rows.total_bytes == tokens * 2 * 4 * 2


def test_rows_of_scattered_blocks_are_one_a_block_and_layer() -> None:
    blocks = np.arange(0, 256, 2)
    rows = plan_of().descriptors(RANK, blocks, blocks[::-1], 128 * 16)
    assert rows.num_rows == 128 * 2


def test_keys_and_values_in_one_page_are_one_row() -> None:
    assert describe([3], [5], 16).num_rows == 2


def test_rows_are_sorted_and_apart_on_both_sides() -> None:
    part = plan_of(16, 24).descriptors(RANK, np.arange(40)[::-1], np.arange(30), 500)[RANK]
    assert (np.diff(part.source_address.astype(np.int64)) >= part.nbytes[:-1].astype(np.int64)).all()
    order = np.argsort(part.target_address)
    ends = part.target_address[order] + part.nbytes[order]
    assert (ends[:-1] <= part.target_address[order][1:]).all()


def test_regions_say_where_a_row_lies() -> None:
    plan = plan_of()
    part = plan.descriptors(RANK, [1, 2], [3, 4], 20)[RANK]
    for number, region in enumerate(plan.prefill.rank().regions):
        mine = part.source_region == number
        assert mine.any() and (part.source_address[mine] >= region.address).all()
        assert (part.source_address[mine] + part.nbytes[mine] <= region.address + region.nbytes).all()


@pytest.mark.parametrize("held", [0, 5, 16, 19, 20])
def test_only_what_the_target_lacks_is_read(held: int) -> None:
    assert describe([1, 2], [3, 4], 20, start_token=held).total_bytes == (20 - held) * 2 * 2 * 2 * 2 * 2


def test_nothing_is_read_of_an_empty_request() -> None:
    rows = describe([], [], 0)
    assert (len(rows), rows.num_rows, rows.total_bytes, dict(rows.incomplete)) == (0, 0, 0, {})


def test_no_state_is_read_before_the_first_token() -> None:
    model = model_of(mamba2_of(1, 2), group="state")
    plan = plan_transfer(engine(model), engine(model))
    assert [plan.descriptors(RANK, [3], [5], tokens).num_rows for tokens in (0, 1)] == [0, 1]
    assert plan.verify(0).ok and plan.verify(0).nbytes == 0


def test_a_state_is_read_whatever_prefix_the_target_holds() -> None:
    model = model_of_groups({"full": [heads_of(2)], "state": [mamba2_of(1, 2)]})
    plan = plan_transfer(engine(model), engine(model))
    rows = [plan.descriptors(RANK, [[1, 2], [3]], [[3, 4], [5]], 20, held).total_bytes for held in (0, 20)]
    assert rows[1] == plan.prefill.model.bytes_per_request()
    assert rows[0] - rows[1] == 20 * plan.prefill.model.bytes_per_token()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([1], [3, 4], "source blocks, group full: 1 blocks, but the tokens need 2; give the whole table"),
        ([1, 2], [3], "target blocks, group full: 1 blocks, but the tokens need 2"),
        ([1, 256], [3, 4], "source blocks, group full: block 256 is not below num_blocks 256; give ids of this engine"),
        ([1, 2], [3, -2], "target blocks, group full: block -2 is not below num_blocks 256"),
        ([1, 1], [3, 4], "source blocks, group full: block 1 appears twice"),
        ([1, 2], [3, 3], "target blocks, group full: block 3 appears twice"),
        ([1, -1], [3, 4], "source blocks, group full: entry 16 is needed for the next token.*offer it before"),
        ([1, 2], [-1, 4], "target blocks, group full: entry 0 is needed for the next token.*give it a block"),
    ],
    ids=[
        "short source",
        "short target",
        "id too high",
        "negative id",
        "repeated source",
        "repeated target",
        "null source",
        "null target",
    ],
)
def test_tables_that_do_not_fit_are_refused(source: list[int], target: list[int], message: str) -> None:
    with pytest.raises(BlockTableError, match=message):
        describe(source, target)


def test_a_block_that_holds_the_prefix_is_never_written_for_later_tokens() -> None:
    with pytest.raises(BlockTableError, match="target blocks, group full: block 3 appears twice"):
        describe([1, 2], [3, 3], 20, start_token=16)


@pytest.mark.parametrize("field", ["num_tokens", "start_token"])
@pytest.mark.parametrize("value", [math.nan, 1.5, "7", None, True], ids=repr)
def test_token_counts_are_whole_numbers(field: str, value: object) -> None:
    counts = {"num_tokens": 20, "start_token": 0} | {field: value}
    with pytest.raises(BlockTableError, match=f"tokens: {field} is .*; it must be a whole number of at least 0"):
        describe([1, 2], [3, 4], **counts)


@pytest.mark.parametrize(("start", "tokens"), [(-1, 20), (21, 20), (0, -1)])
def test_token_ranges_that_cannot_be_are_refused_with_both_ends(start: int, tokens: int) -> None:
    with pytest.raises(
        BlockTableError, match=f"start_token {start} and num_tokens {tokens}; 0 <= start_token <= num_tokens"
    ):
        describe([1, 2], [3, 4], tokens, start_token=start)


def test_numpy_counts_are_counts() -> None:
    assert describe([1, 2], [3, 4], np.int32(20), start_token=np.int64(4), salt=np.uint8(3)).total_bytes == 16 * 32


def test_an_odd_salt_is_refused() -> None:
    with pytest.raises(PlanError, match="salt"):
        describe([1, 2], [3, 4], salt=0.5)


def test_a_null_running_block_is_refused_on_either_side() -> None:
    model = model_of(mamba2_of(1, 2), group="state")
    plan = plan_transfer(engine(model), engine(model))
    for tables in ([-1], [3]), ([3], [-1]):
        with pytest.raises(BlockTableError, match="group state: the running block is null; give its id"):
            plan.descriptors(RANK, *tables, 9)


def windowed() -> EngineLayout:
    return engine(model_of(SlidingWindowSpec(1, 2, 8), group="window"), cache=CacheConfig(4, num_blocks=20))


def test_what_lies_behind_the_window_moves_where_the_source_still_has_it() -> None:
    plan = plan_transfer(windowed(), windowed())
    kept = plan.descriptors(RANK, [1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 20)
    gone = plan.descriptors(RANK, [-1, 2, -1, 4, 5], [6, 7, 8, 9, 10], 20)
    assert kept.total_bytes == 20 * 8 and dict(kept.incomplete) == {}
    assert gone.total_bytes == 12 * 8 and dict(gone.incomplete) == {"window": (6, 8)}


def test_null_blocks_of_the_target_are_not_wanted() -> None:
    rows = plan_transfer(windowed(), windowed()).descriptors(RANK, [1, 2, 3, 4, 5], [-1, -1, 8, 9, 10], 20)
    assert rows.total_bytes == 12 * 8 and dict(rows.incomplete) == {}


def test_a_log_line_tells_rows_and_bytes_and_no_addresses() -> None:
    rows = describe([1], [2], 16)
    assert repr(rows) == "RequestDescriptors([Rows(from tp0: 2 rows, 512 bytes)], incomplete={})"


def test_more_pieces_than_can_be_moved_in_time_are_refused_before_they_are_counted_out() -> None:
    sides = (engine(model_of(heads_of(8)), cache=CacheConfig(2**20, layout=layout)) for layout in ("HND", "NHD"))
    with pytest.raises(BlockTableError, match="pieces from rank tp0, at most"):
        plan_transfer(*sides).descriptors(RANK, list(range(16)), list(range(16)), 2**24)
