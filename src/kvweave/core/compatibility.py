"""Whether two layouts can work together, and if not, every reason with its remedy.

Shapes, sizes, block sizes and memory orders never matter: they are what a plan is for. What must agree is the logical
content: the model, and for every array that the decode side keeps its axes, dtype, compression and reach.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kvweave.core.array import CacheArray, TokenAxis
from kvweave.core.coverage import unheld
from kvweave.core.interval import Box
from kvweave.core.layout import EngineLayout
from kvweave.core.tokens import TokenShare, turns
from kvweave.errors import Mismatch


def check_compatibility(prefill: EngineLayout, decode: EngineLayout) -> list[Mismatch]:
    """Every mismatch between the two, empty when the pair works."""
    problems = _model_problems(prefill, decode)
    offered, wanted = _arrays(prefill), _arrays(decode)
    lacking = [key for key in wanted if key not in offered]
    if lacking:
        names = ", ".join(f"{layer} {part}" for layer, part in lacking[:3]) + (" ..." if len(lacking) > 3 else "")
        problems.append(
            Mismatch(
                "arrays",
                f"none of these {len(lacking)}",
                names,
                "serve the same model with the same draft layers on both sides",
            )
        )
    seen: set[tuple[CacheArray, CacheArray]] = set()
    for (layer, part), array in wanted.items():
        source = offered.get((layer, part))
        if source is not None and source != array and (source, array) not in seen:
            seen.add((source, array))
            problems += _array_problems(f"{layer} {part}", source, array)
    return problems + [_not_held(*lacking) for lacking in unheld(decode)]


def uncovered(target: TokenShare | None, sources: Collection[TokenShare | None]) -> bool:
    """Whether the entries of ``target`` are not each held by exactly one of the sources' shares."""
    if not sources:
        return True
    if target is None or list(sources) == [TokenShare()]:
        return False
    shares = [share for share in sources if share is not None]
    first, _, _ = turns((target, *shares))
    wanted = first[target.holds(first)]
    return bool(np.any(sum(share.holds(wanted).astype(np.int64) for share in shares) != 1))


def _not_held(layer: str, array: CacheArray, box: Box) -> Mismatch:
    return Mismatch(
        f"{layer} {array.part}", array.box_text(box), "no rank that holds it",
        "describe every decode rank, or state the intervals so that they cover the axis",
    )  # fmt: skip


def _model_problems(prefill: EngineLayout, decode: EngineLayout) -> list[Mismatch]:
    source, target = prefill.model.fingerprint, decode.model.fingerprint
    if not source or not target or source == target:
        return []
    return [
        Mismatch(
            "model", f"{prefill.model.name} ({source})", f"{decode.model.name} ({target})",
            "serve the same weights with the same options on both sides",
        )
    ]  # fmt: skip


def _arrays(layout: EngineLayout) -> dict[tuple[str, str], CacheArray]:
    return {
        (place.layer, shard.array.part): shard.array
        for rank in layout.ranks
        for shard in rank.shards
        for place in shard.places
    }


def _array_problems(name: str, source: CacheArray, target: CacheArray) -> list[Mismatch]:
    problems = []
    if source.dtype != target.dtype:
        remedy = "choose the same cache dtype on both sides"
        problems.append(Mismatch(f"{name} dtype", source.dtype.name, target.dtype.name, remedy))
    for number in range(max(len(source.axes), len(target.axes))):
        mine, theirs = (str(array.axes[number]) if number < len(array.axes) else "none" for array in (source, target))
        if mine != theirs:
            problems.append(Mismatch(f"{name} axis {number}", mine, theirs, _axis_remedy(target, number)))
    problems += _token_problems(name, source.tokens, target.tokens)
    return problems


def _axis_remedy(target: CacheArray, number: int) -> str:
    if number < len(target.axes) and target.axes[number].name == "tap":
        return "run both sides with the same number of speculative tokens"
    return "serve the same model on both sides"


def _token_problems(name: str, source: TokenAxis | None, target: TokenAxis | None) -> list[Mismatch]:
    if source is None or target is None:
        if source is target:
            return []
        mine, theirs = ("a state" if tokens is None else "a token axis" for tokens in (source, target))
        return [Mismatch(f"{name} tokens", mine, theirs, "serve the same model on both sides")]
    problems = []
    if source.tokens_per_entry != target.tokens_per_entry:
        values = (str(source.tokens_per_entry), str(target.tokens_per_entry))
        problems.append(Mismatch(f"{name} tokens_per_state", *values, "use the same compression on both sides"))
    if source.reach != target.reach:
        problems.append(
            Mismatch(
                f"{name} reach", str(source.reach), str(target.reach), "use the same window or chunk on both sides"
            )
        )
    return problems
