"""The sharding rules: which box of an array a rank holds.

Tensor parallelism splits an axis of n units over tp ranks::

    n >= tp    contiguous n/tp units each             8 heads, tp 4:   [0,2) [2,4) [4,6) [6,8)
    n <  tp    rank r holds unit r*n // tp            2 heads, tp 4:   [0,1) [0,1) [1,2) [1,2)
    n == 0     every rank holds the whole axis        MLA's latent

Sizes that no engine could build (n that does not divide by tp, or tp by n) are refused, unless the intervals are
stated. Pipeline stages own intervals of decoder layers; dcp deals out the tokens (``tokens.py``); pcp replicates.
Sources: vLLM's ``QKVParallelLinear`` (replicated KV heads), ``MambaMixer2`` (groups), ``get_pp_indices``.
"""

from __future__ import annotations

from kvweave.core.array import Axis, CacheArray
from kvweave.core.interval import Box, Interval
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.tokens import TokenShare
from kvweave.errors import LayoutError


def box_of(array: CacheArray, parallel: ParallelConfig, rank: RankCoordinates) -> Box:
    """The box that ``rank`` holds, in elements of the whole model, one interval per axis.

    Raises ``LayoutError`` for a split that no engine could build.

    >>> from kvweave.core.spec import FullAttentionSpec
    >>> keys, _ = FullAttentionSpec(num_kv_heads=2, head_size=64).arrays()
    >>> [str(box_of(keys, ParallelConfig(tp=4), RankCoordinates(tp=r))[0]) for r in range(4)]
    ['[0, 1)', '[0, 1)', '[1, 2)', '[1, 2)']
    """
    return tuple(axis_interval(axis, array.part, parallel, rank.tp) for axis in array.axes)


def axis_interval(axis: Axis, part: str, parallel: ParallelConfig, tp_rank: int) -> Interval:
    """The elements of one axis that a tensor rank holds."""
    if axis.units == 0:
        return Interval(0, axis.size)
    unit = axis.size // axis.units
    stated = _stated(axis, parallel, tp_rank)
    units = _unit_interval(axis, part, parallel.tp, tp_rank) if stated is None else stated
    return Interval(units.start * unit, units.stop * unit)


def token_share(array: CacheArray, parallel: ParallelConfig, rank: RankCoordinates) -> TokenShare | None:
    """Which entries ``rank`` holds; None for a state.

    dcp deals out tokens, and an entry lies on the rank of its last one (vLLM's ``CompressedSlotMappingKernel``), so
    that a turn must be whole entries; raises ``LayoutError`` where it is not.
    """
    if array.tokens is None:
        return None
    if parallel.dcp == 1 or not array.tokens.dcp_sharded:
        return TokenShare()
    entries, rest = divmod(parallel.interleave, array.tokens.tokens_per_entry)
    if rest:
        raise LayoutError(
            f"{array.part}: interleave {parallel.interleave} is no multiple of the {array.tokens.tokens_per_entry} "
            "tokens of an entry; choose an interleave that is"
        )
    return TokenShare(parallel.dcp, parallel.dcp_rank(rank), entries)


def _stated(axis: Axis, parallel: ParallelConfig, tp_rank: int) -> Interval | None:
    intervals = parallel.stated.get(axis.name)
    if not intervals or max(interval.stop for interval in intervals) != axis.units:
        return None
    return intervals[tp_rank]


def _unit_interval(axis: Axis, part: str, tp: int, tp_rank: int) -> Interval:
    units = axis.units
    if units >= tp and units % tp == 0:
        share = units // tp
        return Interval(tp_rank * share, (tp_rank + 1) * share)
    if units < tp and tp % units == 0:
        held = tp_rank * units // tp
        return Interval(held, held + 1)
    relation = f"{units} does not divide by {tp}" if units >= tp else f"{tp} does not divide by {units}"
    raise LayoutError(
        f"{part}, axis {axis.name}: {units} units over tp={tp}: {relation}; choose a tp that fits, "
        f"or state each rank's interval (stated: {axis.name})"
    )
