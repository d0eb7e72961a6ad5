"""Keys of engines that know each other, made once: making one costs nothing, but names should be spoken of alike."""

from __future__ import annotations

import zmq

from kvweave.runtime.keys import CurveKeys

NAMES = ("prefill", "decode", "other", "stranger")
PAIRS = {name: tuple(key.decode() for key in zmq.curve_keypair()) for name in NAMES}


def keys_of(name: str, *allowed: str) -> CurveKeys:
    """The keys of one engine that talks to these others."""
    return CurveKeys(*PAIRS[name], {other: PAIRS[other][0] for other in allowed})
