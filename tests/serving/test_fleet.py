"""A fleet's life with small programs in place of servers."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvweave.serving.deployment import Deployment
from kvweave.serving.fleet import Died, Fleet, Stopped
from kvweave.serving.interruption import Interruption
from kvweave.serving.ports import take_ports
from kvweave.serving.probe import is_healthy
from tests.serving.own_ports import own_ports
from tests.serving.programs import HEALTHY_SERVER, WITH_WORKERS, is_alive, program
from tests.serving.waiting import wait_until

DIES = (sys.executable, "-c", "import sys; print('no room', flush=True); sys.exit(5)")


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with Interruption() as noted:
        yield noted


def server(name: str, port: int) -> Deployment:
    return Deployment(name, name.partition("-")[0], port, program(HEALTHY_SERVER, port))


def dying(name: str, port: int) -> Deployment:
    return Deployment(name, name, port, DIES)


def servers() -> list[Deployment]:
    first = own_ports(3)
    return [server(name, first + number) for number, name in enumerate(("prefill", "decode", "router"))]


class Told:
    """What a fleet told, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ticks = 0

    def started(self, deployment: Deployment, _: float) -> None:
        self.words.append(f"{deployment.name} started")

    def healthy(self, deployment: Deployment, _: float) -> None:
        self.words.append(f"{deployment.name} healthy")

    def waiting(self) -> None:
        self.ticks += 1


def bring_up(fleet: Fleet, told: Told | None = None) -> object:
    told = told or Told()
    return fleet.bring_up(told.started, told.healthy, told.waiting)


def test_the_router_starts_once_all_servers_are_healthy(tmp_path: Path, interruption: Interruption) -> None:
    told = Told()
    with Fleet(servers(), tmp_path, interruption) as fleet:
        assert bring_up(fleet, told) is None
    assert told.words[:2] == ["prefill started", "decode started"]
    assert sorted(told.words[2:4]) == ["decode healthy", "prefill healthy"]
    assert told.words[4:] == ["router started", "router healthy"]
    assert told.ticks >= 2


def test_leaving_ends_all_and_frees_their_ports(tmp_path: Path, interruption: Interruption) -> None:
    wanted = servers()
    with Fleet(wanted, tmp_path, interruption) as fleet:
        bring_up(fleet)
        assert all(is_healthy(each.url) for each in wanted)
    assert take_ports(wanted[0].port, [3]) == [wanted[0].port]


def test_each_program_has_a_log(tmp_path: Path, interruption: Interruption) -> None:
    wanted = servers()
    with Fleet(wanted, tmp_path, interruption) as fleet:
        bring_up(fleet)
        assert {fleet.log(each).name for each in wanted} == {"prefill.log", "decode.log", "router.log"}
        assert fleet.log(wanted[0]).read_text() == "listening\n"


def test_a_server_that_dies_while_starting_is_named(tmp_path: Path, interruption: Interruption) -> None:
    prefill, _, router = servers()
    wanted = [prefill, dying("decode", prefill.port + 1), router]
    told = Told()
    with Fleet(wanted, tmp_path, interruption) as fleet:
        assert bring_up(fleet, told) == Died(wanted[1], 5)
        assert fleet.log(wanted[1]).read_text() == "no room\n"
    assert "router started" not in told.words


def test_a_server_that_dies_later_is_named(tmp_path: Path, interruption: Interruption) -> None:
    prefill, decode, router = servers()
    file = tmp_path / "pids"
    with Fleet([prefill, decode, router], tmp_path, interruption) as fleet:
        bring_up(fleet)
        killed = Deployment("worker", "decode", decode.port, program(WITH_WORKERS, file, "dies"))
        fleet._start(killed)
        assert fleet.watch() == Died(killed, 3)
    assert not any(is_alive(int(word)) for word in file.read_text().split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "terminated"])
def test_a_signal_stops_the_wait(tmp_path: Path, interruption: Interruption, number: int) -> None:
    with Fleet(servers(), tmp_path, interruption, healthy=lambda _: False) as fleet:
        os.kill(os.getpid(), number)
        assert bring_up(fleet) == Stopped(number)


def test_a_signal_stops_the_watch(tmp_path: Path, interruption: Interruption) -> None:
    with Fleet(servers(), tmp_path, interruption) as fleet:
        bring_up(fleet)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert fleet.watch() == Stopped(signal.SIGTERM)


def test_a_signal_goes_before_the_death_that_it_may_have_caused(tmp_path: Path, interruption: Interruption) -> None:
    wanted = [dying("decode", 1)]
    with Fleet(wanted, tmp_path, interruption, healthy=lambda _: False) as fleet:
        os.kill(os.getpid(), signal.SIGINT)
        assert bring_up(fleet) == Stopped(signal.SIGINT)


def test_another_signal_while_ending_kills_at_once(tmp_path: Path, interruption: Interruption) -> None:
    file = tmp_path / "pids"
    stubborn = Deployment("prefill", "prefill", 1, program(WITH_WORKERS, file, "stubborn"))
    with Fleet([stubborn], tmp_path, interruption, end_seconds=600.0) as fleet:
        fleet._start(stubborn)
        wait_until(lambda: file.exists() and len(file.read_text().split()) == 3, "the program and two workers")
        os.kill(os.getpid(), signal.SIGINT)
    assert not any(is_alive(int(word)) for word in file.read_text().split())


def test_work_is_done_while_the_fleet_is_watched(tmp_path: Path, interruption: Interruption) -> None:
    done: list[int] = []
    with Fleet(servers(), tmp_path, interruption) as fleet:
        bring_up(fleet)
        assert (fleet.meanwhile(lambda: done.append(1)), done) == (None, [1])


def test_a_death_ends_the_work_s_wait(tmp_path: Path, interruption: Interruption) -> None:
    wanted = dying("decode", 1)
    with Fleet([wanted], tmp_path, interruption) as fleet:
        fleet._start(wanted)
        assert fleet.meanwhile(threading.Event().wait) == Died(wanted, 5)


def test_an_error_ends_them_too(tmp_path: Path, interruption: Interruption) -> None:
    wanted = servers()

    def bring_up_and_fail() -> None:
        with Fleet(wanted, tmp_path, interruption) as fleet:
            bring_up(fleet)
            raise KeyError

    with pytest.raises(KeyError):
        bring_up_and_fail()
    assert not is_healthy(wanted[0].url)
