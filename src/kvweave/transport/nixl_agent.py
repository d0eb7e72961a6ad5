"""NIXL's agent, as far as the transport uses it: its calls with our rows and our errors. The only home of ``nixl``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Both log to stdout unless told otherwise, where programs expect our own output.
os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "error")
os.environ.setdefault("UCX_LOG_FILE", "stderr")

from nixl import _bindings as bindings
from nixl._api import nixl_agent, nixl_agent_config

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.pieces import ByteArray
from kvweave.transport.rows import ReadRows, UInt64Array, single, triples

_KINDS: dict[type[Exception], TransportErrorKind] = {
    bindings.nixlRemoteDisconnectError: TransportErrorKind.PEER_LOST,
    bindings.nixlNotFoundError: TransportErrorKind.PEER_LOST,
    bindings.nixlCancelledError: TransportErrorKind.CANCELLED,
    bindings.nixlInvalidParamError: TransportErrorKind.REJECTED,
    bindings.nixlMismatchError: TransportErrorKind.REJECTED,
    bindings.nixlNotAllowedError: TransportErrorKind.REJECTED,
    bindings.nixlNotSupportedError: TransportErrorKind.REJECTED,
    bindings.nixlBackendError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlNotPostedError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlRepostActiveError: TransportErrorKind.UNAVAILABLE,
    bindings.nixlUnknownError: TransportErrorKind.UNAVAILABLE,
}


_FOREIGN = tuple(_KINDS)


@contextmanager
def _foreign_errors(doing: str) -> Iterator[None]:
    """NIXL's errors become ours; what is called all the time does the same by hand."""
    try:
        yield
    except _FOREIGN as error:
        raise _ours(doing, error) from error


def _ours(doing: str, error: Exception) -> TransportError:
    return TransportError(_KINDS[type(error)], f"nixl: {doing}: {error}")


class NixlAgent:
    """An agent without progress thread. Every method raises ``TransportError`` where nothing else is said."""

    def __init__(self, name: str) -> None:
        self._registrations: list[Any] = []
        with _foreign_errors("creating the agent"):
            self._agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))

    def register(self, memory: str, address: UInt64Array, nbytes: UInt64Array, device: UInt64Array | int = 0) -> None:
        """Registers regions of one kind of memory."""
        with _foreign_errors(f"registering {len(address)} regions of {memory}"):
            self._registrations.append(self._agent.register_memory(triples(address, nbytes, device), memory))

    def register_own(self, memory: ByteArray) -> None:
        """Registers memory of the transport itself."""
        self.register("DRAM", single(memory.ctypes.data), single(memory.nbytes))

    def describe(self) -> bytes:
        """NIXL's part of the agent data."""
        with _foreign_errors("describing the agent"):
            described: bytes = self._agent.get_agent_metadata()
        return described

    def add(self, name: str, payload: bytes) -> str:
        """Adds a peer by its data; the name that NIXL found there."""
        with _foreign_errors(f"adding peer {name}"):
            found: str = self._agent.add_remote_agent(payload).decode()
        return found

    def remove(self, peer: str) -> None:
        """Forgets a peer; NIXL may have forgotten it already, when it found it dead."""
        with suppress(TransportError), _foreign_errors(f"removing peer {peer}"):
            self._agent.remove_remote_agent(peer)

    def progress(self) -> Mapping[str, Sequence[bytes]]:
        """Makes progress; the messages that came, by sender."""
        try:
            messages: Mapping[str, Sequence[bytes]] = self._agent.get_new_notifs()
        except _FOREIGN as error:
            raise _ours("making progress", error) from error
        return messages

    def notify(self, peer: str, message: bytes) -> None:
        """Sends a message to a peer."""
        with _foreign_errors(f"asking {peer}"):
            self._agent.send_notif(peer, message)

    def prepare(self, peer: str, rows: ReadRows) -> Any:
        """A piece that can be started."""
        target, source = rows.triples("target"), rows.triples("source")
        try:
            return self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs(target, rows.target_memory),
                self._agent.get_xfer_descs(source, rows.source_memory),
                peer,
            )
        except _FOREIGN as error:
            raise _ours(f"reading from {peer}", error) from error

    def start(self, piece: Any) -> None:
        """Posts a piece that is not under way; on shared memory this copies it."""
        try:
            self._agent.transfer(piece)
        except _FOREIGN as error:
            raise _ours("starting to read", error) from error

    def is_over(self, piece: Any) -> bool:
        """Whether a piece has ended; raises when it ended badly."""
        try:
            state = self._agent.check_xfer_state(piece)
        except _FOREIGN as error:
            raise _ours("reading", error) from error
        if state == "ERR":
            raise TransportError(TransportErrorKind.UNAVAILABLE, "nixl: reading: it failed")
        return bool(state != "PROC")

    def release(self, piece: Any) -> None:
        """Gives up a piece; errors do not matter any more."""
        with suppress(*_FOREIGN):
            self._agent.release_xfer_handle(piece)

    def close(self) -> None:
        """Destroys the agent: UCX writes nowhere without it."""
        for registration in self._registrations:
            with suppress(TransportError), _foreign_errors("deregistering memory"):
                self._agent.deregister_memory(registration)
        self._registrations.clear()
        del self._agent
