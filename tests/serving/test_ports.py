"""Ports: counted upward, those in use left out."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kvweave.errors import ConfigurationError
from kvweave.serving.ports import HOST, require_free, take_ports
from tests.serving.own_ports import own_ports


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on, with free ones around it."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, own_ports(3) + 1))
        listener.listen()
        yield listener.getsockname()[1]


def test_ports_follow_one_another() -> None:
    first = own_ports(6)
    assert take_ports(first, [1, 1, 3, 1]) == [first, first + 1, first + 2, first + 5]


def test_a_port_in_use_is_left_out(taken: int) -> None:
    assert take_ports(taken - 1, [1, 1])[0] == taken - 1
    assert taken not in take_ports(taken - 1, [1, 1])


def test_ports_that_must_follow_one_another_begin_behind_one_in_use(taken: int) -> None:
    assert take_ports(taken - 1, [2])[0] > taken


def test_a_port_in_use_is_refused_with_another(taken: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--port: {taken} is taken; choose another, such as --port "):
        require_free(taken)


def test_a_free_port_is_fine(taken: int) -> None:
    require_free(taken - 1)


def test_the_last_port_is_the_end() -> None:
    with pytest.raises(ConfigurationError, match="no 4 free ports from 65534 on"):
        take_ports(65534, [1, 3])
