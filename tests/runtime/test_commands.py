"""Commands come out in order, and none is forgotten when the engine ends."""

from __future__ import annotations

import threading

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.runtime.commands import CommandQueue


def test_commands_come_out_in_order_and_once() -> None:
    queue: CommandQueue[int] = CommandQueue()
    for number in range(3):
        queue.put(number)
    assert list(queue.take()) == [0, 1, 2]
    assert list(queue.take()) == []


def test_closed_queue_gives_the_rest_and_takes_nothing_more() -> None:
    queue: CommandQueue[int] = CommandQueue()
    queue.put(1)
    assert queue.close() == [1]
    with pytest.raises(LocalProtocolError, match="ended"):
        queue.put(2)
    assert queue.close() == []


def test_every_command_is_taken_or_refused_whatever_the_threads_do() -> None:
    queue: CommandQueue[int] = CommandQueue()
    accepted: list[int] = []

    def put() -> None:
        for number in range(10_000):
            try:
                queue.put(number)
            except LocalProtocolError:
                return
            accepted.append(number)

    thread = threading.Thread(target=put)
    thread.start()
    taken = [next(queue.take(), -1) for _ in range(100)]
    taken += queue.close()
    thread.join()
    assert [number for number in taken if number >= 0] == accepted
