"""The checksum by which a soak tells right bytes from wrong ones, and the codes of failures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.errors import LocalProtocolError, TransferRefused, TransportError, TransportErrorKind
from tests.soak.engine_process import checksum, reason_of


def captured(layer: str = "model.layers.0.self_attn", first: int = 0, last_element: float = 1.0) -> CapturedCache:
    data = np.ones((6, 2, 4), np.float32)
    data[-1, -1, -1] = last_element
    return CapturedCache(6, {(layer, "k"): CapturedArray(first, data)})


@pytest.mark.parametrize(
    "other",
    [captured(last_element=1.0000001), captured(first=1), captured("model.layers.1.self_attn")],
    ids=["one bit", "another place", "another layer"],
)
def test_checksum_sees_every_difference(other: CapturedCache) -> None:
    assert checksum(captured()) == checksum(captured()) != checksum(other)


def test_failures_go_by_their_codes() -> None:
    lost = TransportError(TransportErrorKind.PEER_LOST, "gone")
    assert (reason_of(lost), reason_of(LocalProtocolError("closed"))) == ("peer_lost", "LocalProtocolError")
    assert reason_of(TransferRefused("released", "no")) == "released"
