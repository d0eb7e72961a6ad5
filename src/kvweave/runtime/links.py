"""A rank's worker in another process: the coordinator's end of the link, which speaks for it.

::

    coordinator's process                          worker's process
    DecodeCoordinator -- submit --> RankLink ====> RankService -- submit --> DecodeWorker -> transport
                      <-- events --          <====             <-- events --

A coordinator whose workers live elsewhere has nothing to move itself: whatever it waits for comes by socket.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kvweave.core.layout import EngineLayout
from kvweave.errors import LocalProtocolError
from kvweave.runtime.events import WorkerCommand, WorkerEvent
from kvweave.runtime.link_messages import Adopt, Attend, End, Ended, LinkCommand, decode_event, encode_command
from kvweave.runtime.local_channel import CoordinatorChannel, Endpoint
from kvweave.runtime.polling import Activity, Pollable

CLOSE_SECONDS = 2.0
"""How long ``close`` waits for a worker that is there but does not answer."""
_GLANCE_SECONDS = 0.05


class RankLink:
    """Both a ``PrefillLink`` and a ``DecodeLink``, for one coordinator. Raises ``TransportError`` when nobody listens.

    ``agent_data`` is what the worker gave for the peers that read from it.
    """

    def __init__(self, endpoint: Endpoint, agent_data: bytes) -> None:
        self.agent_data = agent_data
        self._channel: CoordinatorChannel | None = CoordinatorChannel(endpoint)
        self._busy = False

    def adopt(self, rank: int, layout: EngineLayout) -> None:
        """Makes the worker read for this rank of this engine; before any command."""
        self._send(Adopt(rank, layout))

    def submit(self, command: WorkerCommand) -> None:
        """See ``DecodeLink``."""
        self._send(command)

    def attend(self, busy: bool) -> None:
        """See ``PrefillLink``."""
        if busy != self._busy:
            self._busy = busy
            self._send(Attend(busy))

    def poll(self) -> list[WorkerEvent]:
        """See ``DecodeLink``."""
        if self._channel is None:
            return []
        events = [decode_event(data) for data in self._channel.receive()]
        if any(isinstance(event, Ended) for event in events) or not (events or self._channel.open):
            raise LocalProtocolError("link: the worker has ended before its engine; restart the engine")
        return [event for event in events if not isinstance(event, Ended)]

    def sockets(self) -> Sequence[Any]:
        """What to wait on while idle."""
        return () if self._channel is None else self._channel.sockets()

    def close(self) -> None:
        """See ``DecodeLink``; a worker that has ended already is not waited for."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        try:
            channel.send(encode_command(End()))
            _wait_for_end(channel)
        except LocalProtocolError:
            return
        finally:
            channel.close()

    def _send(self, command: LinkCommand) -> None:
        if self._channel is None:
            raise LocalProtocolError("link: it is closed; make a new engine")
        self._channel.send(encode_command(command))


class Patient:
    """Drives a coordinator of remote workers without spinning while their reads are open."""

    def __init__(self, coordinator: Pollable) -> None:
        self._coordinator = coordinator
        self._closing = False

    def poll(self) -> Activity:
        """See ``Pollable``."""
        activity = self._coordinator.poll()
        return activity if self._closing else min(activity, Activity.WAITING)

    def sockets(self) -> Sequence[Any]:
        """See ``Pollable``."""
        return self._coordinator.sockets()

    def begin_closing(self) -> None:
        """See ``Pollable``."""
        self._closing = True
        self._coordinator.begin_closing()

    def close(self, cause: BaseException | None) -> None:
        """See ``Pollable``."""
        self._coordinator.close(cause)


def _wait_for_end(channel: CoordinatorChannel) -> None:
    deadline = time.monotonic() + CLOSE_SECONDS
    while channel.open and time.monotonic() < deadline:
        channel.wait(_GLANCE_SECONDS)
        if any(isinstance(decode_event(data), Ended) for data in channel.receive()):
            return
