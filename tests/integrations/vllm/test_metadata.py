"""What vLLM carries between our roles survives its way between processes."""

from __future__ import annotations

import pickle

from kvweave.integrations.vllm.metadata import Finished, Heard, RankHandshake
from kvweave.runtime.local_channel import Endpoint
from tests.integrations.vllm.engines import Engine
from tests.integrations.vllm.layers import Side
from tests.integrations.vllm.pairs import whole_of
from tests.integrations.vllm.scheduling import FULL


def test_both_are_values_that_vllm_can_send() -> None:
    description = Engine(Side(1), FULL, whole_of(dict(FULL))).description(0)
    handshake = RankHandshake(description, b"agent", {"prefill": Endpoint("rank", b"token")})
    finished = Finished(frozenset({"a"}), frozenset({"c"}), frozenset({3}), watched=True)
    for value in (handshake, finished, Heard()):
        assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301
