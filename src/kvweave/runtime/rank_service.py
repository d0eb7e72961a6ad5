"""The worker's end of its links: one rank's memory and transport, driven by a polling thread of its own process.

The rank can be read from at once. It reads for an engine once that engine's coordinator has adopted it, which needs the
layout of all ranks and therefore comes later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kvweave.core.layout import RankLayout
from kvweave.errors import LocalProtocolError
from kvweave.protocol.effects import CancelReads, ConnectPeer, DropPeer, PostReads, RetryReads
from kvweave.runtime.clock import Clock, boot_time
from kvweave.runtime.link_messages import Adopt, Attend, End, Ended, LinkCommand, decode_command, encode_event
from kvweave.runtime.local_channel import Endpoint, WorkerChannel
from kvweave.runtime.polling import Activity, PollingThread
from kvweave.runtime.workers import DecodeWorker, PrefillWorker
from kvweave.transport.base import Transport


def at_once() -> bool:
    """Target memory that needs no preparation is always ready."""
    return True


class RankService:
    """One rank of an engine whose coordinators live in another process.

    ``roles`` names its coordinators, each of which calls at an endpoint of its own. The transport belongs to the
    service from now on. ``close`` ends it in bounded time.
    """

    def __init__(
        self, name: str, layout: RankLayout, transport: Transport, roles: Sequence[str], clock: Clock = boot_time
    ) -> None:
        worker = PrefillWorker(layout, transport)
        self.agent_data = worker.agent_data
        channels = {role: WorkerChannel() for role in roles}
        self.endpoints: dict[str, Endpoint] = {role: channel.endpoint for role, channel in channels.items()}
        self._rank = _Rank(worker, transport, tuple(channels.values()), clock)
        self._thread = PollingThread(name, self._rank)

    def allow(self, fetch: int, ready: Callable[[], bool] = at_once) -> None:
        """The target memory of a fenced fetch may be written once ``ready`` says so, which the thread asks often."""
        self._rank.fences.append((fetch, ready))
        self._thread.wake()

    @property
    def alive(self) -> bool:
        """Whether the rank can be read from and reads."""
        return self._thread.alive

    def close(self) -> None:
        """Ends all reads; the coordinators see their links end."""
        self._thread.close()


class _Rank:
    """What the polling thread drives."""

    def __init__(
        self, worker: PrefillWorker, transport: Transport, channels: tuple[WorkerChannel, ...], clock: Clock
    ) -> None:
        self._worker = worker
        self._transport = transport
        self._channels = channels
        self._clock = clock
        self.fences: deque[tuple[int, Callable[[], bool]]] = deque()
        self._attended: set[WorkerChannel] = set()
        self._reader: tuple[WorkerChannel, DecodeWorker] | None = None

    def poll(self) -> Activity:
        for channel in self._channels:
            for data in channel.receive():
                self._carry_out(channel, decode_command(data))
        if self._reader is None:
            self._worker.poll()
        else:  # of the same transport
            channel, reader = self._reader
            self._open_fences(reader)
            for event in reader.poll():
                channel.send(encode_event(event))
            if reader.busy:
                return Activity.READING
        return Activity.SERVING if self._attended or self.fences else Activity.IDLE

    def sockets(self) -> Sequence[Any]:
        return [socket for channel in self._channels for socket in channel.sockets()]

    def begin_closing(self) -> None:
        self._transport.close()

    def close(self, cause: BaseException | None) -> None:
        try:
            self._transport.close()
        finally:
            for channel in self._channels:
                channel.close()

    def _open_fences(self, reader: DecodeWorker) -> None:
        for fetch, ready in [self.fences.popleft() for _ in range(len(self.fences))]:
            if ready():
                reader.allow(fetch)
            else:
                self.fences.append((fetch, ready))

    def _carry_out(self, channel: WorkerChannel, command: LinkCommand) -> None:
        match command:
            case Adopt(rank, layout):
                self._reader = channel, DecodeWorker(rank, layout, self._transport, self._clock, registered=True)
            case Attend(busy):
                (self._attended.add if busy else self._attended.discard)(channel)
            case End():
                self._transport.close()
                channel.send(encode_event(Ended()))
            case ConnectPeer() | DropPeer() | PostReads() | RetryReads() | CancelReads():
                if self._reader is None:
                    raise LocalProtocolError(f"link: {type(command).__name__} before the rank was adopted")
                self._reader[1].submit(command)
