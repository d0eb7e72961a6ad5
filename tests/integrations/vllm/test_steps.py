"""No call that vLLM makes in a step waits for a transfer, a peer, or any thread of ours."""

from __future__ import annotations

import threading
from pathlib import Path

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from kvweave.integrations.vllm.connector import KVWeaveConnector
from tests.integrations.vllm.scheduling import PATIENCE, RequestStatus, Two, prompt_of, two_instances
from tests.runtime.pair import wait_until


def hold_polling_thread(two: Two, until: threading.Event) -> threading.Event:
    """Keeps the decode coordinator's thread inside a callback; the event says that it is in there."""
    (target,) = two.decode.connector._scheduler._engines
    (source,) = two.prefill.connector._scheduler._engines
    inside = threading.Event()
    target.connect(source.address).add_done_callback(lambda _: (inside.set(), until.wait(PATIENCE)))
    return inside


def test_steps_go_on_while_all_our_threads_stand_still(config_folder: Path) -> None:
    with two_instances(config_folder) as two:
        worker = KVWeaveConnector(two.decode.vllm_config, KVConnectorRole.WORKER, two.decode.engine.configs[0])
        params = two.prefill.offer("offered", prompt_of(50))
        until = threading.Event()
        assert hold_polling_thread(two, until).wait(PATIENCE)
        with two.decode.network.lock:
            stalled = two.decode.request("stalled", prompt_of(50), 2, params=params)
            other = two.decode.request("other", prompt_of(20, seed=2), 5)
            while not other.is_finished():
                two.decode.step()
                worker.bind_connector_metadata(two.decode.metadata[-1])
                worker.start_load_kv(None)
                assert not worker.get_transfer_results(set()).finished_recving
            assert not until.is_set()
            assert two.decode.metadata[-1].watched
        until.set()
        two.decode.run_until(stalled.is_finished)
        assert two.decode.reported("loaded") == ["stalled"]


def test_an_abort_does_not_wait_either(config_folder: Path) -> None:
    with two_instances(config_folder) as two:
        params = two.prefill.offer("offered", prompt_of(50))
        until = threading.Event()
        assert hold_polling_thread(two, until).wait(PATIENCE)
        two.decode.request("stalled", prompt_of(50), 2, params=params)
        two.decode.step()
        two.decode.scheduler.finish_requests("stalled", RequestStatus.FINISHED_ABORTED)
        two.decode.step()
        assert two.decode.scheduler.has_requests()
        until.set()
        two.settle()
        wait_until(lambda: two.prefill.free_blocks == two.prefill.engine.side.num_blocks - 1)
