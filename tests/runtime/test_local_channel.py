"""The channel between two processes of one engine: private, bounded, gone without a trace."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvweave.errors import ConfigurationError, LocalProtocolError, TransportError, TransportErrorKind
from kvweave.runtime import local_channel
from kvweave.runtime.local_channel import CoordinatorChannel, Endpoint, WorkerChannel
from tests.runtime.pair import wait_until


@pytest.fixture
def worker() -> Iterator[WorkerChannel]:
    made = WorkerChannel()
    yield made
    made.close()


def folder_of(worker: WorkerChannel) -> Path:
    return Path(worker.endpoint.address.removeprefix("ipc://")).parent


def heard(channel: WorkerChannel | CoordinatorChannel) -> bytes:
    found: list[bytes] = []
    wait_until(lambda: bool(found.extend(channel.receive()) or found))
    return found[0]


def test_messages_go_both_ways(worker: WorkerChannel) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    caller.send(b"question")
    assert heard(worker) == b"question"
    worker.send(b"answer")
    assert heard(caller) == b"answer"
    caller.close()


def test_the_folder_is_private_and_goes_with_the_first_call(worker: WorkerChannel) -> None:
    folder = folder_of(worker)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    caller = CoordinatorChannel(worker.endpoint)
    wait_until(lambda: list(worker.receive()) == [] and not folder.exists())
    caller.close()


def test_nothing_is_left_when_nobody_called() -> None:
    worker = WorkerChannel()
    worker.close()
    assert not folder_of(worker).exists()


def test_who_does_not_know_the_token_is_not_heard(worker: WorkerChannel) -> None:
    stranger = CoordinatorChannel(Endpoint(worker.endpoint.address, b"guess"))
    stranger.send(b"command")
    wait_until(lambda: worker.socket.poll(1000) > 0)
    assert list(worker.receive()) == []
    stranger.close()


def test_a_worker_that_has_ended_takes_nothing(worker: WorkerChannel) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    assert caller.open
    worker.close()
    wait_until(lambda: not caller.open)

    with pytest.raises(LocalProtocolError, match="has ended"):
        caller.send(b"command")
    caller.close()


def test_nobody_listening_is_an_error_that_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_channel, "_CALL_MILLISECONDS", 10)
    with pytest.raises(TransportError, match="no worker answers at ipc://") as caught:
        CoordinatorChannel(Endpoint(f"ipc://{tmp_path}/rank", b"token"))
    assert caught.value.kind is TransportErrorKind.TIMED_OUT


def test_a_message_has_a_bound(worker: WorkerChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_channel, "MOST_LINK_BYTES", 3)
    with pytest.raises(LocalProtocolError, match="a message of 4 bytes, at most 3"):
        worker.send(b"long")


def test_a_temporary_folder_that_is_too_deep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a shorter one"):
        WorkerChannel()
    assert list(deep.iterdir()) == []
