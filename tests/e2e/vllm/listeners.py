"""Where a process and all that it started listen, from ``/proc``."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LISTENING = "0A"
"""The state ``TCP_LISTEN`` in ``/proc/net/tcp``."""


def listening_hosts(process: int) -> set[str]:
    """The IPv4 addresses on which a process or one of its descendants listens; ``::`` stands for every IPv6 one."""
    mine = {inode for each in family(process) for inode in _sockets(each)}
    hosts = {host for inode, host in _listeners("tcp") if inode in mine}
    return hosts | {"::" for inode, _ in _listeners("tcp6") if inode in mine}


def family(process: int) -> list[int]:
    """A process and all its descendants."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    found = [process]
    for each in found:
        found += children[each]
    return found


def _sockets(process: int) -> Iterator[str]:
    for link in Path(f"/proc/{process}/fd").glob("*"):
        with suppress(OSError):
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")


def _listeners(table: str) -> Iterator[tuple[str, str]]:
    for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[3] == LISTENING:
            address = bytes.fromhex(words[1].partition(":")[0])
            yield words[9], socket.inet_ntoa(address[::-1]) if len(address) == 4 else "::"
