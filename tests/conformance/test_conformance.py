"""Transfers stated as JSON, with expectations that were worked out by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.interval import Interval
from kvweave.core.layout import EngineLayout
from kvweave.core.model import ModelCache
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.spec import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec
from kvweave.errors import LayoutError
from tests.core.engines import BFLOAT16, model_of_groups

FOLDER = Path(__file__).parent / "cases"
CASES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
KEYS = {"about", "model", "prefill", "decode", "reads", "request", "rows", "refused"}


def with_key(key: str) -> list[Any]:
    return [pytest.param(case, id=name) for name, case in CASES.items() if key in case]


def spec_of(stated: dict[str, Any]) -> LayerSpec:
    values = dict(stated)
    match values.pop("kind"):
        case "full":
            return FullAttentionSpec(**values)
        case "window":
            return SlidingWindowSpec(**values)
        case "mla":
            return MLAAttentionSpec(**values)
        case "mamba2":
            return MambaSpec.mamba2(**values, dtype=BFLOAT16, ssm_dtype=BFLOAT16)
    raise ValueError(f"kind {stated['kind']!r} is not known")


def engine_of(model: ModelCache, stated: dict[str, Any]) -> EngineLayout:
    parallel = dict(stated["parallel"])
    if "stated" in parallel:
        parallel["stated"] = {
            axis: tuple(Interval(*pair) for pair in pairs) for axis, pairs in parallel["stated"].items()
        }
    return EngineLayout.build(model, ParallelConfig(**parallel), CacheConfig(**stated.get("cache", {})))


def plan_of(case: dict[str, Any]) -> TransferPlan:
    model = model_of_groups({group: [spec_of(stated) for stated in specs] for group, specs in case["model"].items()})
    return plan_transfer(engine_of(model, case["prefill"]), engine_of(model, case["decode"]))


def rank_name(rank: RankCoordinates, plan: TransferPlan) -> int | str:
    stages = plan.prefill.parallel.pp > 1 or plan.decode.parallel.pp > 1
    return f"{rank.pp}.{rank.tp}" if stages else rank.tp


def test_there_are_cases_and_each_expects_something() -> None:
    assert len(CASES) >= 14
    assert {name for name, case in CASES.items() if not {"reads", "rows", "refused"} & set(case)} == set()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_case_has_no_key_that_nobody_reads(case: dict[str, Any]) -> None:
    assert set(case) <= KEYS and len(case["about"]) > 20


@pytest.mark.parametrize("case", with_key("reads"))
def test_reads_are_as_expected(case: dict[str, Any]) -> None:
    plan = plan_of(case)
    found = defaultdict(list)
    for target, reads in plan.reads.items():
        for read in reads:
            sources = [rank_name(source.coordinates, plan) for source in read.sources]
            box = [[interval.start, interval.stop] for interval in read.box]
            stated = {"part": read.array.part, "sources": sources, "box": box}
            if plan.decode.parallel.pp > 1:
                stated["layers"] = list(read.layers)
            found[str(rank_name(target, plan))].append(stated)
    order = json.dumps
    assert {rank: sorted(reads, key=order) for rank, reads in found.items()} == {
        rank: sorted(reads, key=order) for rank, reads in case["reads"].items()
    }


@pytest.mark.parametrize("case", with_key("rows"))
def test_rows_are_as_expected(case: dict[str, Any]) -> None:
    plan, request, found = plan_of(case), case["request"], {}
    for target in plan.reads:
        described = plan.descriptors(
            target, request["source"], request["target"], request["num_tokens"], request["start_token"]
        )
        for source, rows in described.items():
            bases = plan.prefill.at(source).regions[0].address, plan.decode.at(target).regions[0].address
            found[f"{rank_name(target, plan)} < {rank_name(source, plan)}"] = [
                [int(start) - bases[0], int(end) - bases[1], int(nbytes)]
                for start, end, nbytes in zip(rows.source_address, rows.target_address, rows.nbytes, strict=True)
            ]
    assert found == case["rows"]


@pytest.mark.parametrize("case", with_key("refused"))
def test_refusals_name_both_values(case: dict[str, Any]) -> None:
    with pytest.raises(LayoutError) as refusal:
        plan_of(case)
    assert all(f"{value}" in str(refusal.value) for value in case["refused"])
