"""The channel between two processes of one engine: private, bounded, gone without a trace."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    return Path(worker.endpoint.path).parent


def ended(caller: CoordinatorChannel) -> bool:
    return list(caller.receive()) == [] and not caller.open


def heard(channel: WorkerChannel | CoordinatorChannel) -> bytes:
    found: list[bytes] = []
    wait_until(lambda: bool(found.extend(channel.receive()) or found))
    return found[0]


def send_much_and_hear(channel: WorkerChannel | CoordinatorChannel) -> bytes:
    channel.send(bytes(10_000_000))
    return heard(channel)


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
    stranger = CoordinatorChannel(Endpoint(worker.endpoint.path, b"guess"))
    stranger.send(b"command")
    wait_until(lambda: list(worker.receive()) == [] and ended(stranger))
    stranger.close()
    caller = CoordinatorChannel(worker.endpoint)
    caller.send(b"question")
    assert heard(worker) == b"question"
    caller.close()


def test_who_calls_and_hangs_up_does_not_take_the_place(worker: WorkerChannel) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(worker.endpoint.path)
        assert list(worker.receive()) == []
    caller = CoordinatorChannel(worker.endpoint)
    caller.send(b"question")
    assert heard(worker) == b"question"
    caller.close()


@pytest.mark.parametrize("nbytes", [0, 1, 10_000_000])
def test_a_message_arrives_whole_whatever_its_size(worker: WorkerChannel, nbytes: int) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(caller.send, bytes(nbytes))
        assert heard(worker) == bytes(nbytes)
        sending.result()
    caller.close()


def test_two_ends_that_send_more_than_fits_do_not_wait_for_each_other(worker: WorkerChannel) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    caller.send(b"question")
    assert heard(worker) == b"question"
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(send_much_and_hear, (caller, worker)))
    assert answers == [bytes(10_000_000)] * 2
    caller.close()


def test_an_end_that_reads_nothing_counts_as_ended(worker: WorkerChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_channel, "MOST_UNREAD_SECONDS", 0.01)
    caller = CoordinatorChannel(worker.endpoint)
    with pytest.raises(LocalProtocolError, match="takes no messages"):
        caller.send(bytes(10_000_000))
    caller.close()


def test_a_worker_waits_on_nothing_once_its_coordinator_has_ended(worker: WorkerChannel) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    wait_until(lambda: list(worker.receive()) == [] and not folder_of(worker).exists())
    caller.close()
    wait_until(lambda: list(worker.receive()) == [] and worker.sockets() == ())
    with pytest.raises(LocalProtocolError, match="has ended"):
        worker.send(b"answer")


def test_a_worker_that_has_ended_takes_nothing(worker: WorkerChannel) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    assert caller.open
    worker.close()
    wait_until(lambda: ended(caller))

    with pytest.raises(LocalProtocolError, match="has ended"):
        caller.send(b"command")
    caller.close()


def test_nobody_listening_is_an_error_that_says_where(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=f"no worker answers at {tmp_path}/rank") as caught:
        CoordinatorChannel(Endpoint(f"{tmp_path}/rank", b"token"))
    assert caught.value.kind is TransportErrorKind.PEER_LOST


def test_a_message_has_a_bound_on_both_ends(worker: WorkerChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = CoordinatorChannel(worker.endpoint)
    caller.send(b"long")
    monkeypatch.setattr(local_channel, "MOST_LINK_BYTES", 3)
    for use in (lambda: caller.send(b"long"), lambda: heard(worker)):
        with pytest.raises(LocalProtocolError, match=r"a message of \d+ bytes, at most 3"):
            use()
    caller.close()


def test_a_temporary_folder_that_is_too_deep_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a shorter one"):
        WorkerChannel()
    assert list(deep.iterdir()) == []
