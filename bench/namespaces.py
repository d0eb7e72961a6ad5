"""Several hosts on one machine: network namespaces on a bridge, some of them behind a link of limited rate.

::

    [prefill 0] eth0 --400 Mbit--+
    [prefill 1] eth0 --400 Mbit--+-- bridge --+-- eth0 [decode 0]
                                              +-- eth0 [control]

The bridge has no address: nothing of it reaches the machine's own network. Names are unique to the process, and
everything is taken down when the network is left, also when the process is told to end (not when it is killed).
Needs root and the commands ``ip`` and ``tc`` (package ``iproute2`` of Debian and Ubuntu).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUBNET = "10.213.77"
PATIENCE_SECONDS = 60.0
_NUMBERS = itertools.count()
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "OMP_NUM_THREADS": "1"}


class CannotRun(RuntimeError):
    """This machine has no such network; the text says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace: its name for ``ip netns`` and its address on the bridge."""

    name: str
    address: str


class Network:
    """A bridge with hosts on it; a context manager. Raises ``CannotRun`` with the reason where there can be none."""

    def __init__(self) -> None:
        self._prefix = f"kvw{os.getpid():x}{next(_NUMBERS):x}"
        self._count = 0
        self._stack = ExitStack()

    @property
    def subnet(self) -> str:
        """All its hosts, as ``peers`` take it."""
        return f"{SUBNET}.0/24"

    def __enter__(self) -> Network:
        reason = why_not()
        if reason:
            raise CannotRun(reason)
        with ExitStack() as stack:
            before = signal.signal(signal.SIGTERM, _end)
            stack.callback(signal.signal, signal.SIGTERM, before)
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            stack.callback(_undo, "ip", "link", "del", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, role: str, megabits: int | None = None) -> Host:
        """One more host; with ``megabits`` it sends at most so many a second."""
        self._count += 1
        host = Host(f"{self._prefix}-{role}", f"{SUBNET}.{self._count}")
        outer = f"{self._prefix}v{self._count}"
        _run("ip", "netns", "add", host.name)
        self._stack.callback(_undo, "ip", "netns", "del", host.name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        self._stack.callback(_undo, "ip", "link", "del", outer)
        _run("ip", "link", "set", outer, "master", self._bridge, "up")
        _run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", host.name, "link", "set", device, "up")
        if megabits is not None:
            limit = f"rate {megabits}mbit burst 512kb latency 100ms".split()
            _run("tc", "-n", host.name, "qdisc", "add", "dev", "eth0", "root", "tbf", *limit)
        return host

    def start(self, host: Host, module: str, *arguments: str) -> subprocess.Popen[str]:
        """A Python module in a process on that host, which is killed at the latest when the network is left."""
        command = ["ip", "netns", "exec", host.name, sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **UCX}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(_kill, process)
        return process

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}br"


def why_not() -> str | None:
    """Why this process cannot make such a network; None when it seems to be able to."""
    missing = [command for command in ("ip", "tc") if shutil.which(command) is None]
    if sys.platform != "linux":
        return "network namespaces are Linux's; run it there"
    if os.geteuid() != 0:
        return "network namespaces need root; run it as root, or in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2 (apt-get install iproute2)"
    return None


def close(process: subprocess.Popen[str]) -> None:
    """Lets a process end by the end of its input."""
    with suppress(subprocess.TimeoutExpired, BrokenPipeError):
        process.communicate(timeout=PATIENCE_SECONDS)


def _kill(process: subprocess.Popen[Any]) -> None:
    with suppress(BrokenPipeError), process:
        process.kill()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def _undo(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=False)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
