"""Servers of a sweep stay as long as they are wanted, and none outlives it. A small HTTP server stands for vLLM's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.vllm.fleet import Fleet
from tests.e2e.vllm.pairs import Place
from tests.e2e.vllm.servers import Deployment, Server

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
ONE, TWO = Place("prefill", "tp=1"), Place("decode", "tp=1")


class SmallServer(Deployment):
    """Answers that it is healthy."""

    program = HEALTHY

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.program, str(port)]


class BrokenServer(SmallServer):
    """Ends with a message."""

    program = "raise SystemExit('no such model')"


def small(place: Place, kind: type[SmallServer] = SmallServer) -> dict[Place, Deployment]:
    return {place: kind(str(place), Path("model"))}


def ended(server: Server) -> bool:
    return server.process.poll() is not None and not server.healthy()


def test_servers_stay_as_long_as_they_are_wanted(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        fleet.hold(small(ONE) | small(TWO))
        one, two = fleet.servers[ONE], fleet.servers[TWO]
        assert one.healthy() and two.healthy()
        fleet.hold(small(TWO))
        assert fleet.servers == {TWO: two}
        assert ended(one) and two.healthy()


def test_a_dead_server_is_started_again(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        fleet.hold(small(ONE))
        fleet.servers[ONE].process.kill()
        fleet.servers[ONE].process.wait()
        fleet.hold(small(ONE))
        assert fleet.servers[ONE].healthy()


def test_a_server_that_does_not_start_is_told_and_not_tried_again(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        fleet.hold(small(ONE, BrokenServer) | small(TWO))
        error = fleet.failed[ONE]
        assert "no such model" in str(error) and "no such model" in error.log
        assert fleet.servers[TWO].healthy()
        fleet.hold(small(ONE) | small(TWO))
        assert fleet.failed == {ONE: error}
        fleet.hold(small(TWO))
        assert fleet.failed == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_no_server_outlives_the_sweep(tmp_path: Path, error: type[BaseException]) -> None:
    fleet = Fleet(tmp_path)

    def sweep() -> None:
        with fleet:
            fleet.hold(small(ONE) | small(TWO))
            started.extend(fleet.servers.values())
            raise error

    started: list[Server] = []
    with pytest.raises(error):
        sweep()
    assert len(started) == 2 and all(ended(server) for server in started)
