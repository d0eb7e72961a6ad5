from __future__ import annotations

import pytest

from kvweave.core.interval import Interval
from kvweave.core.parallel import ParallelConfig, RankCoordinates
from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.layer_facts import LayerFacts
from kvweave.integrations.vllm.layout import RankDescription, Worker, describe_rank, refuse_configuration
from tests.integrations.vllm.engines import Engine
from tests.integrations.vllm.layers import Heads, Layer, Side
from tests.integrations.vllm.pairs import whole_of

MODEL: dict[str, Layer] = {f"model.layers.{layer}.self_attn.attn": Heads(4) for layer in range(3)}
SHARING = "model.layers.2.self_attn.attn"


def _described(facts: dict[str, LayerFacts], without: str = "") -> RankDescription:
    made = Engine(Side(), MODEL, whole_of(MODEL))
    worker = Worker(ParallelConfig(), RankCoordinates(), Interval(0, 3), whole_of(MODEL), facts)
    tensors = {name: tensor for name, tensor in made.tensors[0].items() if name != without}
    return describe_rank(tensors, made.configs[0], worker)


FACTS = {name: LayerFacts("FLASH_ATTN") for name in MODEL}


def test_a_layer_that_reads_anothers_cache_is_left_out() -> None:
    shared = FACTS | {SHARING: LayerFacts("FLASH_ATTN", shares_with="model.layers.1.self_attn.attn")}
    assert SHARING not in {layer.name for _, layer in _described(shared).layers}


def test_a_layer_without_its_tensor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"{SHARING}: .* has no tensor"):
        _described(FACTS, without=SHARING)


def test_a_layer_that_vllm_has_not_built_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"{SHARING}: .* has no attention layer"):
        _described({name: facts for name, facts in FACTS.items() if name != SHARING})


def test_groups_that_hisparse_keeps_are_refused() -> None:
    made = Engine(Side(), MODEL, whole_of(MODEL))
    made.configs[0].kv_cache_groups[0].host_resident = True
    with pytest.raises(ConfigurationError, match="cache group 0: HiSparse keeps it on the host"):
        refuse_configuration(made.configs[0])


def test_layers_of_one_geometry_share_a_shard_and_groups_a_region() -> None:
    rank = _described(FACTS).rank
    assert [len(shard.places) for shard in rank.shards] == [3, 3]
    assert len(rank.regions) == 1
