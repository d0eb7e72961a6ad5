import math
from dataclasses import replace

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.cost import TransferRates, cost_of, estimate_request
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import plan_transfer
from kvweave.core.sample import sample_tables
from kvweave.errors import ConfigurationError, PlanError
from tests.core.engines import engine, heads_of, mamba2_of, model_of, model_of_groups

LARGE = CacheConfig(block_size=4, num_blocks=64)


def plan_between(model, prefill, decode):
    return plan_transfer(engine(model, cache=LARGE, **prefill), engine(model, cache=LARGE, **decode))


def test_bytes_are_those_of_the_model():
    model = model_of_groups({"full": [heads_of(4)] * 2, "state": [mamba2_of(2, 4)]})
    cost = estimate_request(plan_between(model, {"tp": 2}, {"tp": 4}), 50)
    replicated = 2  # conv.b and conv.c of two groups at tp=4: two ranks hold each
    states = sum(
        array.entry_bytes * (replicated if array.part in ("conv.b", "conv.c") else 1)
        for layer in model.groups[1].layers
        for array in layer.spec.arrays()
    )
    assert cost.nbytes == 50 * model.bytes_per_token() + states


def test_blocks_in_order_cost_rows_that_do_not_grow_with_the_tokens():
    plan = plan_between(model_of(heads_of(4)), {"tp": 1}, {"tp": 1})
    assert [estimate_request(plan, tokens).rows for tokens in (40, 200)] == [1, 1]


def test_scattered_blocks_cost_more_rows_and_time_for_the_same_bytes():
    plan = plan_between(model_of(heads_of(4)), {"tp": 1}, {"tp": 1})
    ordered, scattered = (estimate_request(plan, 200, scattered=scattered) for scattered in (False, True))
    assert ordered.nbytes == scattered.nbytes
    assert ordered.rows < scattered.rows
    assert ordered.seconds < scattered.seconds


def test_a_rank_s_cost_is_its_rows_and_bytes_at_the_stated_rates():
    plan = plan_between(model_of(heads_of(4)), {"tp": 2}, {"tp": 1})
    tables = sample_tables(plan.prefill, 20), sample_tables(plan.decode, 20)
    described = plan.descriptors(RankCoordinates(), *tables, 20)
    cost = cost_of(described, TransferRates(seconds_per_row=1.0, bytes_per_second=100.0))
    assert cost.rows == described.num_rows
    assert cost.seconds == pytest.approx(described.num_rows + described.total_bytes / 100)


def test_the_slowest_rank_decides_the_time():
    cost = estimate_request(plan_between(model_of(heads_of(4)), {"tp": 4}, {"tp": 2}), 40)
    assert len(cost.ranks) == 2
    assert cost.seconds == max(rank.seconds for rank in cost.ranks.values())
    assert cost.rows == sum(rank.rows for rank in cost.ranks.values())


@pytest.mark.parametrize(
    ("source", "target"),
    [("LBHNC", "LBNHC"), ("BLHNC", "LBNHC"), ("BLNHC", "BLNHC"), ("BHLNC", "BLHNC"), ("LBHNC", "LBHNC")],
)
def test_an_estimate_has_the_rows_that_the_request_will_have(source, target):
    model = model_of_groups({"full": [heads_of(4)] * 3, "state": [mamba2_of(2, 4)] * 2})
    layouts = [engine(model, 2, replace(LARGE, layout=layout)) for layout in (source, target)]
    plan = plan_transfer(*layouts)
    tables = [sample_tables(layout, 50) for layout in layouts]
    for rank, cost in estimate_request(plan, 50).ranks.items():
        described = plan.descriptors(rank, *tables, 50)
        assert (cost.rows, cost.nbytes) == (described.num_rows, described.total_bytes)


def test_one_row_costs_as_much_as_32_kb_by_default():
    assert TransferRates().row_bytes == pytest.approx(32_000)


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_request_without_tokens_is_refused(tokens):
    with pytest.raises(PlanError, match=rf"tokens: {tokens} .* at least 1"):
        estimate_request(plan_between(model_of(heads_of(4)), {}, {}), tokens)


def test_a_request_longer_than_the_blocks_is_refused():
    with pytest.raises(PlanError, match=r"257.*prefill engine's blocks hold 256"):
        estimate_request(plan_between(model_of(heads_of(4)), {}, {}), 257)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["seconds_per_row", "bytes_per_second"])
def test_rates_that_no_machine_has_are_refused(field, value):
    with pytest.raises(ConfigurationError, match=field):
        TransferRates(**{field: value})
