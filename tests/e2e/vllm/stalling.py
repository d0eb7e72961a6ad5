"""The connector over a transport that holds one request's reads until a file lets them go (``stall_file``)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.integrations.vllm.connector import KVWeaveConnector
from kvweave.transport.base import ReadHandle, ReadRows
from kvweave.transport.nixl import NixlTransport
from tests.e2e.vllm.stall_file import STALL_FILE, held_file


class StallingTransport(NixlTransport):
    """NIXL, but for what the file says."""

    def __init__(self, file: Path, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._file = file
        self._held: dict[ReadHandle, ReadRows] = {}
        self._let_go_of: dict[ReadHandle, ReadHandle] = {}

    def read(self, peer: str, rows: ReadRows, attended: bool = True) -> ReadHandle:
        if not self._file.exists():
            return super().read(peer, rows, attended)
        handle = ReadHandle(peer)
        self._held[handle] = rows
        self._file.rename(held_file(self._file))
        return handle

    def cancel(self, handle: ReadHandle) -> None:
        if self._held.pop(handle, None) is not None:
            handle.fail(TransportError(TransportErrorKind.CANCELLED, f"read from {handle.peer}: cancelled while held"))
        else:
            super().cancel(self._let_go_of.get(handle, handle))

    def progress(self) -> int:
        if self._held and not held_file(self._file).exists():
            self._let_go_of |= {handle: super(StallingTransport, self).read(handle.peer, rows)
                                for handle, rows in self._held.items()}  # fmt: skip
            self._held.clear()
        left = super().progress()
        for handle, real in [pair for pair in self._let_go_of.items() if pair[1].state.terminal]:
            del self._let_go_of[handle]
            handle.complete() if real.error is None else handle.fail(real.error)
        return left + len(self._held) + len(self._let_go_of)


class StallingConnector(KVWeaveConnector):  # type: ignore[misc]
    """KVWeaveConnector over it."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        file = Path(vllm_config.kv_transfer_config.kv_connector_extra_config[STALL_FILE])
        self.make_transport = partial(StallingTransport, file)
        super().__init__(vllm_config, role, kv_cache_config)
