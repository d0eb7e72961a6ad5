"""A plan as a document for programs: the schema ``kvweave.plan/1`` of docs/plan-schema.md.

Plain dictionaries, lists, numbers and text, ready for JSON. Boxes are half-open intervals in elements of the whole
model. Each read appears once per progression of token positions, with the source that serves salt 0. ``holds`` states
each target rank's own boxes, so that the document can be checked without anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from kvweave.core.array import CacheArray, ChunkReach, FullReach, Reach, WindowReach
from kvweave.core.interval import Box
from kvweave.core.layout import EngineLayout, RankLayout, Shard
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan
from kvweave.core.read import Read
from kvweave.core.replicas import choose
from kvweave.core.token_run import TokenRun, read_runs, share_run

PLAN_SCHEMA = "kvweave.plan/1"

Document = dict[str, Any]


def plan_document(plan: TransferPlan) -> Document:
    """The whole plan; one object in ``ranks`` for each planned target rank."""
    return {
        "schema": PLAN_SCHEMA,
        "model": plan.decode.model.name,
        "prefill": engine_document(plan.prefill),
        "decode": engine_document(plan.decode),
        "ranks": [_rank(plan.decode.at(target), reads) for target, reads in plan.reads.items()],
    }


def engine_document(layout: EngineLayout) -> Document:
    """One engine's description; ``dp`` is how many engines of this shape there are."""
    parallel = layout.parallel
    document: Document = {
        "parallel": {name: getattr(parallel, name) for name in ("tp", "pp", "dcp", "pcp", "dp", "interleave")},
        "ranks_per_engine": parallel.ranks_per_engine,
    }
    if layout.cache is not None:
        document["cache"] = {item.name: getattr(layout.cache, item.name) for item in fields(layout.cache)}
    return document


def coordinates_document(rank: RankCoordinates) -> Document:
    """A rank's coordinates."""
    return {"pp": rank.pp, "pcp": rank.pcp, "tp": rank.tp}


def _rank(target: RankLayout, reads: Sequence[Read]) -> Document:
    return {
        "target": coordinates_document(target.coordinates),
        "holds": [_held(shard) for shard in target.shards],
        "reads": [document for read in reads for document in _reads(read)],
    }


def _held(shard: Shard) -> Document:
    runs = () if shard.tokens is None else (share_run(shard.tokens, _tokens_per_entry(shard.array)),)
    return {
        "layers": [place.layer for place in shard.places],
        "part": shard.array.part,
        "group": shard.group,
        "dtype": shard.array.dtype.name,
        "box": _box(shard.array, shard.box),
        "tokens": _tokens(runs[0]) if runs else None,
    }


def _reads(read: Read) -> Iterator[Document]:
    """One object per progression; a state has none and is one object."""
    for run in read_runs(read) or (None,):
        yield {**_ends(read), **_amount(read, run)}


def _ends(read: Read) -> Document:
    source = choose(read).coordinates
    return {
        "layers": list(read.layers),
        "part": read.array.part,
        "group": read.target.group,
        "dtype": read.array.dtype.name,
        "source": coordinates_document(source),
        "replicas": [coordinates_document(end.coordinates) for end in read.sources if end.coordinates != source],
        "box": _box(read.array, read.box),
    }


def _amount(read: Read, run: TokenRun | None) -> Document:
    if run is None or read.array.tokens is None:
        return {"tokens": None, "bytes_per_request": read.entry_bytes}
    rate = read.array.tokens.tokens_per_entry
    return {
        "tokens": _tokens(run),
        "tokens_per_entry": rate,
        "reach": _reach(read.array.tokens.reach),
        "bytes_per_token": read.entry_bytes // rate if read.entry_bytes % rate == 0 else read.entry_bytes / rate,
    }


def _tokens_per_entry(array: CacheArray) -> int:
    return 1 if array.tokens is None else array.tokens.tokens_per_entry


def _tokens(run: TokenRun) -> Document:
    return {"first": run.first, "run": run.run, "step": run.step}


def _reach(reach: Reach) -> Document:
    match reach:
        case FullReach():
            return {"kind": "full"}
        case WindowReach(tokens):
            return {"kind": "window", "tokens": tokens}
        case ChunkReach(tokens):
            return {"kind": "chunk", "tokens": tokens}


def _box(array: CacheArray, box: Box) -> Document:
    return {axis.name: [held.start, held.stop] for axis, held in zip(array.axes, box, strict=True)}
