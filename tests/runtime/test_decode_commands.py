"""Commands are values, and a peer that one of them is told of says where it is."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from kvweave.runtime import Peer
from kvweave.runtime.decode_commands import Abort, DecodeCommand


def test_every_command_is_frozen() -> None:
    ours = [kind for kind in get_args(DecodeCommand) if kind.__module__ == Abort.__module__]
    assert len(ours) > 3
    assert all(kind.__dataclass_params__.frozen for kind in ours)
    with pytest.raises(FrozenInstanceError):
        Abort(1).number = 2


def test_a_peer_is_what_callers_know_from_the_package() -> None:
    assert Peer.__module__ == Abort.__module__
