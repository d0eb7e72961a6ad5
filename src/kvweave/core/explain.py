"""A plan in the words of a table: who reads what from whom, layers and equal parts folded, and the totals.

Bytes are averages per token of the request, over all layers of a row: under dcp a rank reads a part of the positions
only, and a compressed array has one entry for several tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvweave.core.array import ChunkReach, WindowReach
from kvweave.core.folding import fold_layers, fold_numbers
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan
from kvweave.core.read import Read
from kvweave.core.replicas import choose
from kvweave.core.token_run import read_runs


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row: equal parts of some layers, from one source to one target. Texts, and the bytes over all its layers."""

    target: RankCoordinates
    layers: str
    module: str
    parts: tuple[str, ...]
    box: str
    source: RankCoordinates
    replicas: tuple[RankCoordinates, ...]
    tokens: str
    bytes_per_token: float
    bytes_per_request: int


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """The plan in figures. Bytes are (least, most) over the target ranks.

    ``sources`` is how many prefill ranks are read for one request, ``readers`` how many pairs of ranks that makes.
    Each decode engine shakes hands once with each prefill engine: ``handshakes``.
    """

    targets: int
    prefill_ranks: int
    bytes_per_token: tuple[float, float]
    bytes_per_request: tuple[int, int]
    sources: int
    readers: int
    handshakes: int


def plan_rows(plan: TransferPlan) -> Iterator[PlanRow]:
    """The rows of a plan, target after target."""
    for target, reads in plan.reads.items():
        equal: dict[object, list[Read]] = defaultdict(list)
        for read in reads:
            equal[_folding_key(read)].append(read)
        yield from (_row(target, same) for same in equal.values())


def plan_totals(plan: TransferPlan) -> PlanTotals:
    """The figures of a plan, for a request of salt 0."""
    readers = {(target, choose(read).coordinates) for target, reads in plan.reads.items() for read in reads}
    per_token = [sum(map(read_bytes_per_token, reads)) for reads in plan.reads.values()]
    per_request = [sum(map(read_bytes_per_request, reads)) for reads in plan.reads.values()]
    return PlanTotals(
        targets=len(plan.reads),
        prefill_ranks=plan.prefill.parallel.ranks_per_engine,
        bytes_per_token=(min(per_token, default=0.0), max(per_token, default=0.0)),
        bytes_per_request=(min(per_request, default=0), max(per_request, default=0)),
        sources=len({source for _, source in readers}),
        readers=len(readers),
        handshakes=plan.prefill.parallel.dp * plan.decode.parallel.dp,
    )


def read_bytes_per_token(read: Read) -> float:
    """Bytes that one more token adds to a read on average, over its layers; a window counts while it grows."""
    if read.array.tokens is None:
        return 0.0
    per_entry = read.entry_bytes * len(read.layers)
    return per_entry / read.array.tokens.tokens_per_entry * sum(run.share for run in read_runs(read))


def read_bytes_per_request(read: Read) -> int:
    """Bytes of a read of states, over its layers; 0 for an array with tokens."""
    return read.entry_bytes * len(read.layers) if read.array.tokens is None else 0


def describe_ranks(ranks: Sequence[RankCoordinates]) -> str:
    """Ranks as text, folded where they differ in the tensor rank alone.

    >>> describe_ranks([RankCoordinates(tp=rank) for rank in (1, 2, 3)])
    'tp1-3'
    """
    by_place: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in ranks:
        by_place[rank.pp, rank.pcp].append(rank.tp)
    return ", ".join(_ranks_at(*place, numbers) for place, numbers in by_place.items())


def _ranks_at(pp: int, pcp: int, numbers: Sequence[int]) -> str:
    first = str(RankCoordinates(pp, pcp, numbers[0]))
    if len(numbers) == 1:
        return first
    return first.removesuffix(f"tp{numbers[0]}") + "tp" + fold_numbers(numbers).replace(", ", ",")


def _folding_key(read: Read) -> tuple[object, ...]:
    ends = tuple(end.coordinates for end in read.sources)
    axes = tuple(axis.name for axis in read.array.axes)
    return read.layers, axes, read.box, ends, choose(read).coordinates, read_runs(read), read.array.tokens


def _row(target: RankCoordinates, reads: Sequence[Read]) -> PlanRow:
    first = reads[0]
    source = choose(first).coordinates
    layers, module = fold_layers(first.layers)
    return PlanRow(
        target,
        layers,
        module,
        tuple(read.array.part for read in reads),
        _box_text(first),
        source,
        tuple(end.coordinates for end in first.sources if end.coordinates != source),
        _tokens_text(first),
        sum(map(read_bytes_per_token, reads)),
        sum(map(read_bytes_per_request, reads)),
    )


def _box_text(read: Read) -> str:
    """The axes that are cut; the others are whole and need no words."""
    cut = [
        f"{axis.name} {interval} of {axis.size}"
        for axis, interval in zip(read.array.axes, read.box, strict=True)
        if len(interval) != axis.size
    ]
    return ", ".join(cut) or "all"


def _tokens_text(read: Read) -> str:
    if read.array.tokens is None:
        return "state"
    return ", ".join([*_progressions(read), *_conditions(read)])


def _progressions(read: Read) -> Iterable[str]:
    for run in read_runs(read):
        yield "all" if run.step == run.run else f"{run.run} of every {run.step} from {run.first}"


def _conditions(read: Read) -> Iterable[str]:
    tokens = read.array.tokens
    if tokens is None:
        return
    if tokens.tokens_per_entry > 1:
        yield f"1 entry per {tokens.tokens_per_entry}"
    match tokens.reach:
        case WindowReach(size):
            yield f"window {size}"
        case ChunkReach(size):
            yield f"chunk {size}"
