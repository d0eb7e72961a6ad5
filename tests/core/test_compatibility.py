from __future__ import annotations

from dataclasses import replace

import pytest

from kvweave.core.array import DType
from kvweave.core.cache_config import CacheConfig
from kvweave.core.compatibility import check_compatibility, uncovered
from kvweave.core.model import ModelCache
from kvweave.core.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from kvweave.core.tokens import TokenShare
from tests.core.engines import BFLOAT16, FLOAT32, deepseek_v4, engine, heads_of, mamba2_of, model_of

FLOAT8 = DType.of("fp8_e4m3")


def problems(source: ModelCache, target: ModelCache) -> list[str]:
    return [str(problem) for problem in check_compatibility(engine(source), engine(target))]


def test_shapes_sizes_and_orders_never_matter() -> None:
    model = deepseek_v4()
    one = engine(model, 8, CacheConfig(16, "NHD", num_blocks=4))
    other = engine(model, 2, CacheConfig(96, "BHLNC", num_blocks=9, packing="region", page_padding=64), pp=2, dcp=2)
    assert check_compatibility(one, other) == check_compatibility(other, one) == []


@pytest.mark.parametrize(
    ("source", "target", "field", "values", "remedy"),
    [
        (
            heads_of(4), FullAttentionSpec(4, 2, dtype=FLOAT8),
            "full.0 k dtype", ("bfloat16", "fp8_e4m3"), "same cache dtype",
        ),
        (heads_of(4), heads_of(8), "full.0 k axis 0", ("of 4", "of 8"), "same model"),
        (heads_of(4), heads_of(4, 3), "full.0 k axis 1", ("of 2", "of 3"), "same model"),
        (
            SlidingWindowSpec(4, 2, 8), SlidingWindowSpec(4, 2, 9),
            "full.0 k reach", ("8 tokens", "9 tokens"), "same window",
        ),
        (
            heads_of(4), ChunkedLocalAttentionSpec(4, 2, 9),
            "full.0 k reach", ("all tokens", "chunk of 9 tokens"), "same window",
        ),
        (
            MLAAttentionSpec(4, tokens_per_state=4), MLAAttentionSpec(4, tokens_per_state=2),
            "full.0 latent tokens_per_state", ("4", "2"), "same compression",
        ),
        (
            mamba2_of(1, 4), MambaSpec.mamba2(4, 1, 1, 2, 3, BFLOAT16, FLOAT32, speculative_tokens=1),
            "full.0 conv.x axis 1", ("tap of 2", "tap of 3"), "same number of speculative tokens",
        ),
        (
            mamba2_of(1, 4), MambaSpec.mamba2(4, 1, 1, 2, 3, BFLOAT16, BFLOAT16),
            "full.0 ssm dtype", ("float32", "bfloat16"), "same cache dtype",
        ),
    ],
    ids=["dtype", "heads", "head size", "window", "window or not", "compression", "speculation", "state dtype"],
)  # fmt: skip
def test_a_mismatch_names_field_both_values_and_remedy(
    source: LayerSpec, target: LayerSpec, field: str, values: tuple[str, str], remedy: str
) -> None:
    found = check_compatibility(engine(model_of(source)), engine(model_of(target)))
    named = {problem.field: problem for problem in found}
    assert values[0] in named[field].source and values[1] in named[field].target and remedy in named[field].remedy


def test_every_reason_is_given_not_only_the_first() -> None:
    source = model_of(heads_of(4), SlidingWindowSpec(4, 2, 8))
    target = model_of(FullAttentionSpec(4, 3, dtype=FLOAT8), SlidingWindowSpec(4, 2, 9), heads_of(1))
    found = "\n".join(problems(source, target))
    for expected in ("full.2 k, full.2 v", "full.0 k dtype", "full.0 k axis 1", "full.1 k reach"):
        assert expected in found


def test_one_reason_is_given_once_for_layers_alike() -> None:
    source, target = (model_of(*[heads_of(4, size)] * 50) for size in (2, 3))
    assert len(problems(source, target)) == 2


def test_a_state_is_no_array_with_tokens() -> None:
    state = MambaSpec("other", mamba2_of(1, 4).states[:1])
    latent = MLAAttentionSpec(4, part="conv.x")
    assert any(
        "a state" in problem and "a token axis" in problem for problem in problems(model_of(state), model_of(latent))
    )


@pytest.mark.parametrize(("one", "other", "works"), [("a", "b", False), ("a", "a", True), ("", "b", True)])
def test_a_fine_tune_of_the_same_shape_is_another_model(one: str, other: str, works: bool) -> None:
    source, target = (replace(model_of(heads_of(4)), fingerprint=text) for text in (one, other))
    assert (problems(source, target) == []) is works


def test_layers_that_only_the_source_has_do_not_matter() -> None:
    assert problems(model_of(heads_of(4), heads_of(4)), model_of(heads_of(4))) == []
    assert "none of these 2" in problems(model_of(heads_of(4)), model_of(heads_of(4), heads_of(4)))[0]


WHOLE = TokenShare()


@pytest.mark.parametrize(
    ("target", "sources", "lacking"),
    [
        (WHOLE, [], True),
        (None, [None], False),
        (TokenShare(2, 1), [WHOLE], False),
        (WHOLE, [TokenShare(2, 0), TokenShare(2, 1)], False),
        (WHOLE, [TokenShare(2, 0)], True),
        (TokenShare(2, 1), [TokenShare(4, 1), TokenShare(4, 3)], False),
        (TokenShare(2, 1), [TokenShare(4, 1), TokenShare(4, 2)], True),
        (WHOLE, [WHOLE, TokenShare(2, 0)], True),
        (TokenShare(2, 0, 4), [TokenShare(2, 0, 4)], False),
        (TokenShare(2, 0, 4), [TokenShare(2, 0, 2)], True),
    ],
    ids=[
        "none", "state", "from a whole", "all shares", "one of two",
        "two of four", "a wrong one", "twice", "same turns", "other turns",
    ],
)  # fmt: skip
def test_each_entry_must_be_held_by_exactly_one_share(
    target: TokenShare | None, sources: list[TokenShare | None], lacking: bool
) -> None:
    assert uncovered(target, sources) is lacking
