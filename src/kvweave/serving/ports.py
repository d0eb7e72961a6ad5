"""Which ports are free: counted upward from a stated one, all on loopback.

They are taken below the range from which systems choose by themselves, so that nobody else gets one in between.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from kvweave.errors import ConfigurationError

HOST = "127.0.0.1"
LAST_PORT = 65535


def require_free(port: int) -> None:
    """Raises ``ConfigurationError`` when somebody listens on ``port``, or this user may not."""
    try:
        _bind(port).close()
    except OSError as error:
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise ConfigurationError(
            f"--port: {port} {reason}; choose another, such as --port {_next_free(port)}"
        ) from None


def take_ports(first: int, sizes: Sequence[int]) -> list[int]:
    """The first of as many consecutive free ports as each of ``sizes`` says, from ``first`` upward, none twice.

    Raises ``ConfigurationError`` when there are not enough.
    """
    taken, port = [], first
    for size in sizes:
        start = port
        while port < start + size:
            if port > LAST_PORT:
                raise ConfigurationError(f"--port: no {sum(sizes)} free ports from {first} on; choose a lower port")
            start = start if _is_free(port) else port + 1
            port += 1
        taken.append(start)
    return taken


def _next_free(port: int) -> int:
    return next((other for other in range(max(port + 1, 1024), LAST_PORT) if _is_free(other)), 8000)


def _is_free(port: int) -> bool:
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


def _bind(port: int) -> socket.socket:
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, port))
        probe.listen(1)
    except OSError:
        probe.close()
        raise
    return probe
