"""A pause is made only where nobody waits for the scheduler, and what is told meanwhile ends it once."""

import pytest

from kvweave.integrations.vllm.pause import Pause


def told_pause(batches_in_flight: int) -> Pause:
    pause = Pause(batches_in_flight)
    pause.end()
    return pause


def pauses(pause: Pause, num_scheduled_tokens: int) -> bool:
    pause.count(num_scheduled_tokens)
    return pause.take()


def test_what_was_told_ends_one_pause() -> None:
    pause = told_pause(1)
    assert pauses(pause, 0)
    assert not pauses(pause, 0)


def test_a_step_that_computes_does_not_pause_and_takes_no_news_away() -> None:
    pause = told_pause(1)
    assert not pauses(pause, 7)
    assert pauses(pause, 0)


@pytest.mark.parametrize("batches_in_flight", [2, 3])
def test_it_pauses_only_when_no_step_that_computes_can_be_in_flight(batches_in_flight: int) -> None:
    pause = told_pause(batches_in_flight)
    assert not pauses(pause, 1)
    assert not any(pauses(pause, 0) for _ in range(batches_in_flight - 1))
    assert pauses(pause, 0)
