"""Parallel sizes refuse what no engine has; stages and dcp ranks deal out everything once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.errors import ConfigurationError

sizes = st.integers(1, 6)


def dcp_sizes(tp: int, pcp: int) -> list[int]:
    """Those that vLLM allows: divisors of tp; with pcp, nothing, pcp, or everything."""
    return [size for size in range(1, tp + 1) if tp % size == 0] if pcp == 1 else [1, pcp, tp * pcp]


@given(sizes, sizes, sizes)
def test_an_engine_has_each_rank_once_tensor_rank_fastest(pp: int, pcp: int, tp: int) -> None:
    parallel = ParallelConfig(tp=tp, pp=pp, pcp=pcp)
    ranks = list(parallel.ranks())
    assert ranks == sorted(set(ranks))
    assert len(ranks) == parallel.ranks_per_engine == pp * pcp * tp


@given(sizes, sizes, sizes)
def test_data_parallel_multiplies_engines_and_no_ranks(tp: int, pp: int, dp: int) -> None:
    assert list(ParallelConfig(tp=tp, pp=pp, dp=dp).ranks()) == list(ParallelConfig(tp=tp, pp=pp).ranks())


@given(sizes, sizes, st.data())
def test_every_dcp_rank_is_held_by_equally_many_ranks_of_a_stage(tp: int, pcp: int, data: st.DataObject) -> None:
    dcp = data.draw(st.sampled_from(dcp_sizes(tp, pcp)))
    parallel = ParallelConfig(tp=tp, pcp=pcp, dcp=dcp)
    held = Counter(parallel.dcp_rank(rank) for rank in parallel.ranks())
    assert held == dict.fromkeys(range(dcp), tp * pcp // dcp)


@given(sizes, sizes, st.integers(1, 40))
def test_another_dcp_is_refused_with_both_sizes(tp: int, pcp: int, dcp: int) -> None:
    assume(dcp not in dcp_sizes(tp, pcp))
    with pytest.raises(ConfigurationError, match=f"dcp: {dcp} .*(tp={tp}|pcp={pcp})"):
        ParallelConfig(tp=tp, pcp=pcp, dcp=dcp)


@given(st.integers(1, 16), st.integers(0, 100))
def test_stages_are_the_layers_in_order_and_differ_by_one_at_most(pp: int, more: int) -> None:
    stages = ParallelConfig(pp=pp).stages(pp + more)
    assert (stages[0].start, stages[-1].stop) == (0, pp + more)
    assert all(before.stop == after.start for before, after in pairwise(stages))
    assert {len(stage) for stage in stages} <= {(pp + more) // pp, (pp + more) // pp + 1}


@given(st.integers(2, 16), st.integers(0, 100))
def test_surplus_layers_go_to_the_stages_before_the_last(pp: int, more: int) -> None:
    counts = [len(stage) for stage in ParallelConfig(pp=pp).stages(pp + more)]
    assert counts[-1] == min(counts)
    assert counts[:-1] == sorted(counts[:-1])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_stated_stages_are_taken_as_stated(counts: list[int]) -> None:
    assume(sum(counts))
    stages = ParallelConfig(pp=len(counts), stage_layers=tuple(counts)).stages(sum(counts))
    assert [len(stage) for stage in stages] == counts


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
@pytest.mark.parametrize("name", ["tp", "pp", "dcp", "pcp", "dp", "interleave"])
def test_what_is_no_size_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}: {value!r} is not a whole number"):
        ParallelConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stage_layers", "message"),
    [((4,), "1 stages for pp=2"), ((5, -1), "layers is -1"), ((2, 1), "sum to 3, the model has 4 layers")],
    ids=["too few", "negative", "another sum"],
)
def test_stages_that_do_not_fit_are_refused(stage_layers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelConfig(pp=2, stage_layers=stage_layers).stages(4)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="4 stages for 3 layers; choose pp <= 3"):
        ParallelConfig(pp=4).stages(3)


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        ((Interval(0, 3),), "1 intervals for tp=2"),
        ((Interval(0, 3), Interval(3, 3)), "is empty"),
        ((Interval(0, 1), Interval(2, 3)), r"no rank holds \[1, 2\)"),
        ((Interval(1, 2), Interval(2, 3)), r"no rank holds \[0, 1\)"),
    ],
    ids=["too few", "an empty one", "a gap", "nothing from 0"],
)
def test_stated_intervals_that_leave_something_out_are_refused(intervals: tuple[Interval, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelConfig(tp=2, stated={"head": intervals})


@given(sizes, sizes, sizes)
def test_a_rank_shows_the_coordinates_that_matter(pp: int, pcp: int, tp: int) -> None:
    assert str(RankCoordinates(pp, pcp, tp)) == f"pp{pp}.pcp{pcp}.tp{tp}"
    assert str(RankCoordinates(tp=tp)) == f"tp{tp}"
