"""The document is checked from its JSON alone, by counting every element: nothing of the planner is used here."""

import json
from itertools import product

import numpy as np
import pytest

from kvweave.core.plan import plan_transfer
from kvweave.core.plan_document import plan_document
from kvweave.core.spec import MLAAttentionSpec, SlidingWindowSpec
from tests.core.engines import deepseek_v4, engine, fits, heads_of, mamba2_of, model_of, model_of_groups, stated_heads

SIZES = (1, 2, 3, 4, 6, 8)


def document_between(model, prefill, decode):
    plan = plan_transfer(engine(model, **prefill), engine(model, **decode))
    return json.loads(json.dumps(plan_document(plan)))


def slices(box):
    return tuple(slice(start, stop) for start, stop in box.values())


def positions(tokens, num_tokens):
    """The token positions of a progression; one position for a state."""
    if tokens is None:
        return np.ones(1, dtype=bool)
    numbers = np.arange(num_tokens)
    return (numbers >= tokens["first"]) & ((numbers - tokens["first"]) % tokens["step"] < tokens["run"])


def period(rank):
    steps = [entry["tokens"]["step"] for entry in rank["holds"] + rank["reads"] if entry["tokens"]]
    return 2 * int(np.lcm.reduce(steps or [1]))


def counts(entries, extents, num_tokens):
    """How often each element of each (layer, part) is covered."""
    found = {}
    for entry in entries:
        for layer in entry["layers"]:
            key = (layer, entry["part"])
            tokens = positions(entry["tokens"], num_tokens)
            counter = found.setdefault(key, np.zeros((len(tokens), *extents[key]), dtype=int))
            for position in np.flatnonzero(tokens):
                counter[(position, *slices(entry["box"]))] += 1
    return found


def extents_of(rank):
    found = {}
    for entry in rank["holds"] + rank["reads"]:
        sizes = [stop for _, stop in entry["box"].values()]
        for layer in entry["layers"]:
            key = (layer, entry["part"])
            found[key] = np.maximum(found[key], sizes) if key in found else np.array(sizes)
    return found


def faults(document):
    """What in a document contradicts "the reads never overlap and together are exactly the box"."""
    for rank in document["ranks"]:
        extents, num_tokens = extents_of(rank), period(rank)
        held, read = (counts(rank[name], extents, num_tokens) for name in ("holds", "reads"))
        if held.keys() != read.keys():
            yield rank["target"], held.keys() ^ read.keys()
        for key in held.keys() & read.keys():
            if held[key].max() != 1 or not np.array_equal(held[key], read[key]):
                yield rank["target"], key


def units_of(rank, count, tp):
    """Which units a tensor rank holds, by the rules of docs/sharding.md."""
    if count >= tp:
        return [rank * count // tp, (rank + 1) * count // tp]
    return [rank * count // tp, rank * count // tp + 1]


@pytest.mark.parametrize("heads", range(1, 9), ids="{} heads".format)
def test_heads_are_read_exactly_once_and_from_ranks_that_hold_them(heads):
    for source_tp, target_tp in product(SIZES, SIZES):
        if not (fits(heads, source_tp) and fits(heads, target_tp)):
            continue
        document = document_between(model_of(heads_of(heads)), {"tp": source_tp}, {"tp": target_tp})
        assert list(faults(document)) == []
        for rank in document["ranks"]:
            assert {tuple(held["box"]["head"]) for held in rank["holds"]} == {
                tuple(units_of(rank["target"]["tp"], heads, target_tp))
            }
            for read in rank["reads"]:
                for source in (read["source"], *read["replicas"]):
                    start, stop = units_of(source["tp"], heads, source_tp)
                    assert start <= read["box"]["head"][0] < read["box"]["head"][1] <= stop


@pytest.mark.parametrize(("groups", "heads"), [(1, 8), (2, 8), (4, 8), (8, 8)], ids="{} groups".format)
def test_every_section_of_a_state_is_read_exactly_once(groups, heads):
    for source_tp, target_tp in product((1, 2, 4, 8), repeat=2):
        document = document_between(
            model_of(mamba2_of(groups, heads), group="state"), {"tp": source_tp}, {"tp": target_tp}
        )
        assert list(faults(document)) == []


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"tp": 4, "dcp": 4}, {"tp": 2, "dcp": 2}),
        ({"tp": 4, "dcp": 2, "interleave": 4}, {"tp": 4, "dcp": 4}),
        ({"tp": 2}, {"tp": 4, "dcp": 4, "interleave": 2}),
        ({"tp": 2, "pcp": 2, "dcp": 4}, {"tp": 3}),
        ({"tp": 2, "pp": 2}, {"tp": 1, "pp": 3}),
        ({"tp": 2, "pp": 3, "stage_layers": (1, 2, 1)}, {"tp": 4, "pp": 2, "dp": 8}),
    ],
    ids=["dcp 4 to 2", "other interleave", "only decode", "pcp", "stages", "uneven stages"],
)
@pytest.mark.parametrize("kind", ["latent", "mixed"])
def test_tokens_and_layers_are_shared_out_exactly_once(kind, prefill, decode):
    latents = [MLAAttentionSpec(3)] * 4
    mixed = {"full": latents, "window.8": [SlidingWindowSpec(12, 2, 8)] * 2, "state": [mamba2_of(12, 12)] * 4}
    model = model_of(*latents) if kind == "latent" else model_of_groups(mixed)
    assert list(faults(document_between(model, prefill, decode))) == []


def test_stated_intervals_are_read_exactly_once():
    document = document_between(model_of(heads_of(3)), {"tp": 3}, {"tp": 2, "stated": stated_heads(3, 2)})
    assert list(faults(document)) == []


def test_compressed_and_windowed_parts_of_one_model_are_read_exactly_once():
    assert list(faults(document_between(deepseek_v4(), {"tp": 8}, {"tp": 4}))) == []


@pytest.mark.parametrize("lost", ["a read", "a box", "a token"])
def test_the_checker_sees_what_is_missing(lost):
    document = document_between(model_of(heads_of(4)), {"tp": 4, "dcp": 1}, {"tp": 2})
    reads = document["ranks"][0]["reads"]
    if lost == "a read":
        reads.pop()
    elif lost == "a box":
        reads[0]["box"]["dim"][1] -= 1
    else:
        reads[0]["tokens"] = {"first": 0, "run": 1, "step": 2}
    assert list(faults(document)) != []


def test_bytes_per_token_are_one_layers():
    document = document_between(model_of(heads_of(4, 64), heads_of(4, 64)), {"tp": 4}, {"tp": 2})
    assert {read["bytes_per_token"] for read in document["ranks"][0]["reads"]} == {64 * 2}


def test_a_compressed_entry_is_spread_over_its_tokens():
    model = model_of(MLAAttentionSpec(512, tokens_per_state=128), MLAAttentionSpec(3, tokens_per_state=4))
    reads = document_between(model, {}, {})["ranks"][0]["reads"]
    assert [(read["tokens_per_entry"], read["bytes_per_token"]) for read in reads] == [(128, 8), (4, 1.5)]


def test_a_state_has_bytes_per_request_and_no_tokens():
    read = document_between(model_of(mamba2_of(1, 4), group="state"), {"tp": 1}, {"tp": 1})["ranks"][0]["reads"][0]
    assert read["tokens"] is None
    assert "bytes_per_token" not in read
    assert read["bytes_per_request"] > 0


def test_replicas_are_the_other_ranks_with_the_same_bytes():
    document = document_between(model_of(MLAAttentionSpec(3)), {"tp": 4}, {"tp": 2})
    reads = [rank["reads"][0] for rank in document["ranks"]]
    assert [read["source"]["tp"] for read in reads] == [0, 2]
    assert [[replica["tp"] for replica in read["replicas"]] for read in reads] == [[1, 2, 3], [0, 1, 3]]


def test_reach_says_what_is_wanted():
    model = model_of_groups({"full": [heads_of(2)], "window.8": [SlidingWindowSpec(2, 2, 8)]})
    reads = document_between(model, {}, {})["ranks"][0]["reads"]
    assert [read["reach"] for read in reads if read["part"] == "k"] == [
        {"kind": "full"},
        {"kind": "window", "tokens": 8},
    ]


def test_data_parallel_engines_only_multiply():
    document = document_between(model_of(heads_of(4)), {"tp": 2}, {"tp": 2, "dp": 8})
    assert document["decode"]["parallel"]["dp"] == 8
    assert len(document["ranks"]) == 2


def test_the_schema_is_named_and_engines_described():
    document = document_between(model_of(heads_of(4)), {"tp": 2}, {"tp": 4})
    assert document["schema"] == "kvweave.plan/1"
    assert document["prefill"]["ranks_per_engine"] == 2
    assert document["decode"]["cache"]["layout"] == "LBHNC"
