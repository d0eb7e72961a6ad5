"""Broken inputs from whole ones: bytes flipped, cut, doubled and joined, and values inside msgpack and JSON replaced.

A mutation is a function of a random generator, so that a seed makes the same inputs again.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import msgspec

NUMBERS = (0, 1, -1, 2, 63, 127, 255, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, "", "x" * 3000, b"", b"\x00" * 64, [], {}, [[]], 0.0, -1.5, 1e308,
                           float("inf"), float("nan"), "\ud7ff\x00", {"a": [1]}, [0] * 5000)  # fmt: skip


def mutated_bytes(random: random.Random, corpus: Sequence[bytes]) -> bytes:
    """Bytes like one of the corpus, changed in a few places."""
    data = bytearray(random.choice(corpus))
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place, kind = random.randrange(len(data) + 1), random.randrange(7)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << random.randrange(8)
        elif kind == 1 and data:
            data[place % len(data)] = random.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDC, 0xDD, 0xDE, 0xDF, 0xFF))
        elif kind == 2:
            data[place:place] = random.randbytes(random.randrange(1, 9))
        elif kind == 3:
            del data[place : place + random.randrange(1, 64)]
        elif kind == 4:
            del data[place:]
        elif kind == 5:
            other = random.choice(corpus)
            data[place:] = other[random.randrange(len(other) + 1) :]
        else:
            data[place:place] = data[place : place + random.randrange(1, 64)]
    return bytes(data)


def mutated_value(random: random.Random, value: Any) -> Any:
    """A nested value with one to four of its parts replaced, doubled or taken away."""
    value = copy.deepcopy(value)
    for _ in range(random.randrange(1, 5)):
        value = _mutate(random, value)
    return value


def mutated_msgpack(random: random.Random, whole: bytes) -> bytes:
    """A record in msgpack with other values in it; what can't be encoded again is broken as bytes."""
    try:
        return msgspec.msgpack.encode(mutated_value(random, msgspec.msgpack.decode(whole)))
    except (msgspec.MsgspecError, OverflowError, ValueError, TypeError, UnicodeEncodeError):
        return mutated_bytes(random, [whole])


def _mutate(random: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        action = random.random()
        if action < 0.1:
            del value[key]
        elif action < 0.15:
            value[random.choice(("unknown", "type", ""))] = value[key]
        else:
            value[key] = _mutate(random, value[key])
        return value
    if isinstance(value, list) and value and random.random() < 0.9:
        place, action = random.randrange(len(value)), random.random()
        if action < 0.1:
            del value[place]
        elif action < 0.2:
            value[place:place] = [value[place]] * random.choice((1, 2, 500))
        else:
            value[place] = _mutate(random, value[place])
        return value
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 0.6:
        return max(-(2**63), min(2**64 - 1, value + random.choice((-1, 1, 2, -value, value, 4096))))
    return copy.deepcopy(random.choice(VALUES))
