"""A short part of the fuzzing: every decoder and two engines at work, with inputs of fixed seeds and the kept ones."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.decoders import Result, drawn, feed
from tests.fuzz.live import Hostile, Told, harass, serve
from tests.fuzz.mutation import mutated_bytes, mutated_msgpack
from tests.fuzz.targets import Target, targets
from tests.runtime.pair import joined

INPUTS = 200


@pytest.mark.parametrize("target", list(targets()), ids=lambda target: target.name)
def test_decoder_answers_with_its_own_error_or_takes_it(target: Target) -> None:
    result = feed(target, drawn(target, 1, INPUTS), Result(target.name))
    assert [fault for _, fault in result.faults] == []
    assert result.inputs >= INPUTS and result.taken < result.inputs


def test_engines_go_on_working_while_they_are_told_nonsense() -> None:
    hostile, told = Hostile(1), Told()
    with joined() as pair:
        harass(pair, hostile, 2.0, told)
        hostile.close()
        serve(pair, "afterwards", told)
        assert pair.prefill.metrics().total("malformed_messages") > 0
        assert pair.decode.metrics().total("delivered") == told.requests >= 2


def test_a_seed_makes_the_same_inputs_again() -> None:
    one, other = ([mutated_msgpack(random.Random(5), b"\x81\xa1a\x01") for _ in range(3)] for _ in range(2))
    assert one == other
    assert mutated_bytes(random.Random(5), [b"abc"]) == mutated_bytes(random.Random(5), [b"abc"])
