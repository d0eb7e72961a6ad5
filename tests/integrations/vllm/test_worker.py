"""The worker role reports what it was told, once. Registering needs a worker process: ``test_real_engine`` has one."""

from __future__ import annotations

from kvweave.integrations.vllm.metadata import Finished, Heard
from kvweave.integrations.vllm.settings import Settings
from kvweave.integrations.vllm.worker import WorkerRole, transport_name
from kvweave.transport.memory import MemoryNetwork

SETTINGS = Settings(("decode",), "engine")


def role() -> WorkerRole:
    return WorkerRole(None, None, SETTINGS, MemoryNetwork().join)


def test_what_was_noted_is_reported_once() -> None:
    worker = role()
    worker.note(Finished(frozenset({"sent"}), frozenset({"bad"})))
    results = worker.take_results()
    assert (results.finished_sending, results.finished_recving) == ({"sent"}, {"bad"})
    assert results.failed_recving == {"bad"}
    assert worker.take_results().finished_recving == set()


def test_steps_between_two_reports_add_up() -> None:
    worker = role()
    for name in ("one", "two"):
        worker.note(Finished(released=frozenset({name})))
    assert worker.take_results().finished_sending == {"one", "two"}


def test_vllm_asks_the_scheduler_role_after_every_step_with_fetches_under_way() -> None:
    worker = role()
    worker.note(Finished(watched=True))
    assert worker.answer() == Heard().aggregate(Heard())
    worker.note(Finished())
    assert worker.answer() is None


def test_a_worker_without_tensors_ends_too() -> None:
    worker = role()
    worker.shutdown()
    assert worker.handshake is None


def test_no_two_transports_have_one_name() -> None:
    assert transport_name(SETTINGS, "tp0") != transport_name(SETTINGS, "tp0")
