from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from kvweave.core.spec import LayerSpec
from kvweave.testing.strategies import Transfer, fitting_counts, models, transfers

ANY = settings(max_examples=2000, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


def test_fitting_counts_split_or_replicate() -> None:
    assert fitting_counts(4, 6) == [1, 2, 12]


@pytest.mark.parametrize("kind", [*LayerSpec.__args__])
def test_every_kind_of_layer_is_drawn(kind: type) -> None:
    model = find(
        models((2, 4)), lambda model: any(isinstance(layer.spec, kind) for layer in model.layers()), settings=ANY
    )
    assert {type(layer.spec) for layer in model.layers()} >= {kind}


def traits(transfer: Transfer) -> set[str]:
    prefill, decode, request = transfer.prefill.parallel, transfer.decode.parallel, transfer.request
    found = {
        "sizes that do not divide": prefill.tp % decode.tp != 0 and decode.tp % prefill.tp != 0,
        "unequal context parallel sizes": prefill.dcp != decode.dcp,
        "stages on both sides": prefill.pp > 1 and decode.pp > 1,
        "a prefix": 0 < request.start_token < request.num_tokens,
        "windows that moved on": any(-1 in table for name, table in request.source.items() if len(table) > 3),
        "blocks that do not divide": transfer.prefill.cache.block_size % transfer.decode.cache.block_size != 0,
    }
    return {trait for trait, there in found.items() if there}


def test_every_kind_of_transfer_is_drawn() -> None:
    seen: set[str] = set()

    @settings(max_examples=150, derandomize=True, database=None)
    @given(transfer=transfers())
    def draw(transfer: Transfer) -> None:
        seen.update(traits(transfer))

    draw()
    assert len(seen) == 6
