"""vLLM's own scheduler with our connector in it, ranks with live memory, and no model: a step is done by hand.

Each rank is a ``RankService`` over the memory transport, as a vLLM worker would hold it. ``step`` schedules, reports
what the workers would report, writes labels of the computed tokens where vLLM's kernels would write them, and lets
every request that was computed to its end sample the token ``SAMPLED``. A token's labels depend on its position alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorWorkerMetadata
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvweave.integrations.vllm.metadata import Finished, RankHandshake
from kvweave.integrations.vllm.stats import KVWeaveStats
from kvweave.integrations.vllm.whole_model import WholeModel
from kvweave.runtime.rank_service import RankService
from kvweave.transport.faults import Fault, FaultSource, no_faults, scripted_faults
from kvweave.transport.memory import MemoryNetwork
from tests.integrations.vllm.engines import Engine
from tests.integrations.vllm.layers import Heads, Layer, Side
from tests.integrations.vllm.offloading import HostStore
from tests.integrations.vllm.pairs import whole_of

SAMPLED = 7
PATIENCE = 20.0
LABELLED_TOKENS = 512
FULL: Mapping[str, Layer] = {f"model.layers.{layer}.self_attn.attn": Heads(4) for layer in range(2)}
WINDOW = 32
MIXED: Mapping[str, Layer] = {
    "model.layers.0.self_attn.attn": Heads(4),
    "model.layers.1.self_attn.attn": Heads(4, kind="SlidingWindowSpec", extra={"sliding_window": WINDOW}),
}


@dataclass
class Instance:
    """One vLLM engine without a model. ``extra`` goes to ``kv_connector_extra_config``.

    ``beside`` are the configurations of other connectors, with which ours stands in a ``MultiConnector``.
    """

    role: str
    engine: Engine
    network: MemoryNetwork
    config_folder: Path
    policy: str = "fail"
    prefix_caching: bool = True
    budget: int = 512
    extra: dict[str, Any] = field(default_factory=dict)
    beside: Sequence[dict[str, Any]] = ()
    faults: FaultSource = no_faults
    services: list[RankService] = field(default_factory=list)
    metadata: list[Finished] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    stats: KVWeaveStats = field(default_factory=KVWeaveStats)
    prefilled: dict[str, Any] = field(default_factory=dict)
    store: HostStore | None = None

    def __post_init__(self) -> None:
        kv_cache_config = self.engine.configs[0]
        self.vllm_config = self._vllm_config()
        block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, self.vllm_config)
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(hash_block_size, sha256)
        self.scheduler = Scheduler(
            self.vllm_config,
            kv_cache_config,
            StructuredOutputManager(self.vllm_config),
            block_size,
            hash_block_size,
            log_stats=True,
        )
        self.connector = self.scheduler.connector
        roles = {"kv_producer": ["prefill"], "kv_consumer": ["decode"], "kv_both": ["prefill", "decode"]}[self.role]
        handshakes = {}
        for number in range(len(self.engine.tensors)):
            description = self.engine.description(number)
            name = f"{self.role} {id(self)} {number}"
            service = RankService(name, description.rank, self.network.join(name, self.faults), roles)
            self.services.append(service)
            handshakes[0, number] = RankHandshake(description, service.agent_data, service.endpoints, bool(self.beside))
        self.connector.set_xfer_handshake_metadata_pp_aware(handshakes)

    def close(self) -> None:
        self.connector.shutdown()
        for service in self.services:
            service.close()

    def request(self, name: str, prompt: list[int], max_tokens: int = 1, **options: Any) -> Request:
        """A request that the scheduler has been given."""
        params = options.pop("params", None)
        extra = {} if params is None else {"extra_args": {"kv_transfer_params": params}}
        request = Request(
            request_id=name, prompt_token_ids=list(prompt), pooling_params=None, block_hasher=self._hasher,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, **extra, **options),
        )  # fmt: skip
        self.scheduler.add_request(request)
        return request

    def step(self) -> Any:
        """One step of the engine; the scheduler's output."""
        output = self.scheduler.schedule()
        finished = output.kv_connector_metadata
        reports: dict[str, Any] = {}
        brought: set[str] = set()
        if self.beside:
            finished, theirs, *_ = finished.metadata
            reports, brought = self._offload(theirs)
        self.metadata.append(finished)
        connector = KVConnectorOutput(
            finished_sending=set(finished.released), finished_recving=set(finished.failed) | brought,
            failed_recving=set(finished.failed), **reports,
        )  # fmt: skip
        self._zero(output.new_block_ids_to_zero or ())
        for service in self.services:
            for fetch in finished.zeroed:
                service.allow(fetch)
        ids = list(output.num_scheduled_tokens)
        for name in ids:
            self._compute(name, output.num_scheduled_tokens[name])
        sampled = [[SAMPLED] if self._complete(name) else [] for name in ids]
        self.results = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={name: place for place, name in enumerate(ids)},
                sampled_token_ids=sampled,
                kv_connector_output=connector,
            ),
        )
        self.loaded += sorted(connector.finished_recving - connector.failed_recving)
        self._note_results()
        return output

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Steps until something is so; fails when it never is."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "this never happened"
            self.step()

    def offer(self, name: str, prompt: list[int], **options: Any) -> dict[str, Any] | None:
        """Prefills a prompt with labels in its blocks; the params for a decode engine."""
        request = self.request(name, prompt, params={"do_remote_decode": True}, **options)
        while not request.is_finished():
            self.step()
        return self.answers().get(name)

    def answers(self) -> dict[str, Any]:
        """The params of the requests that finished in the last step."""
        return {
            output.request_id: output.kv_transfer_params
            for outputs in self.results.values()
            for output in outputs.outputs
            if output.finish_reason is not None
        }

    def blocks_of(self, name: str) -> list[list[int]]:
        """A request's block ids per group."""
        return [list(ids) for ids in self.scheduler.kv_cache_manager.get_block_ids(name)]

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody holds."""
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def reported(self, kind: str) -> list[str]:
        """All ids that were reported so far: ``released``, ``loaded`` or ``failed``."""
        if kind == "loaded":
            return self.loaded
        return [name for finished in self.metadata for name in sorted(getattr(finished, kind))]

    def wrong_bytes(self, name: str, start: int, stop: int) -> int:
        """How many bytes of a request's tokens are not their labels: those that writing them would change."""
        before = [self.engine.memory(rank).clone() for rank in range(len(self.engine.tensors))]
        self.engine.write(self.blocks_of(name), np.arange(start, stop), LABELLED_TOKENS)
        return sum(int((self.engine.memory(rank) != memory).sum()) for rank, memory in enumerate(before))

    def _offload(self, theirs: Any) -> tuple[dict[str, Any], set[str]]:
        """Lets the connector beside ours work, if it is vLLM's OffloadingConnector and its blocks have a place."""
        if self.store is None:
            return {}, set()
        done, loaded = self.store.step(theirs)
        return {"kv_connector_worker_meta": MultiKVConnectorWorkerMetadata((None, done))}, loaded

    def _note_results(self) -> None:
        for outputs in self.results.values():
            stats = outputs.scheduler_stats
            data = (stats.kv_connector_stats if stats is not None else None) or {}
            ours = data.get("KVWeaveConnector") if self.beside else data
            if ours:
                self.stats.aggregate(KVWeaveStats(ours))
            self.prefilled |= {out.request_id: out.prefill_stats for out in outputs.outputs if out.prefill_stats}

    def _zero(self, block_ids: Sequence[int]) -> None:
        """As vLLM's ``_zero_block_ids``: these blocks of every layer with full attention."""
        for group in self.engine.configs[0].kv_cache_groups:
            for name in group.layer_names if isinstance(group.kv_cache_spec, FullAttentionSpec) else ():
                for tensors in self.engine.tensors:
                    tensors[name][list(block_ids)] = 0

    def _compute(self, name: str, num_tokens: int) -> None:
        stop = self.scheduler.requests[name].num_computed_tokens
        self.engine.write(self.blocks_of(name), np.arange(stop - num_tokens, stop), LABELLED_TOKENS)

    def _complete(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _vllm_config(self) -> Any:
        model = ModelConfig(
            model=str(self.config_folder), dtype="bfloat16", max_model_len=512, skip_tokenizer_init=True
        )
        cache = CacheConfig(block_size=self.engine.side.block_size, enable_prefix_caching=self.prefix_caching)
        cache.num_gpu_blocks = self.engine.side.num_blocks
        scheduler = SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=self.budget, max_model_len=512, enable_chunked_prefill=True,
            is_encoder_decoder=False, async_scheduling=False, disable_hybrid_kv_cache_manager=False,
        )  # fmt: skip
        own = {
            "kv_connector": "KVWeaveConnector", "kv_connector_module_path": "kvweave.integrations.vllm",
            "kv_role": self.role, "kv_load_failure_policy": self.policy, "kv_connector_extra_config": self.extra,
        }  # fmt: skip
        whole = {
            "kv_connector": "MultiConnector", "kv_role": self.role, "kv_load_failure_policy": self.policy,
            "kv_connector_extra_config": {"connectors": [own, *self.beside]},
        }  # fmt: skip
        transfer = KVTransferConfig(**whole if self.beside else own)
        return VllmConfig(
            model_config=model, cache_config=cache, scheduler_config=scheduler, kv_transfer_config=transfer,
            device_config=DeviceConfig("cpu"),
        )  # fmt: skip


@dataclass
class Two:
    """A prefill and a decode instance of the same model."""

    prefill: Instance
    decode: Instance

    def transfer(self, prompt: list[int], max_tokens: int = 2, name: str = "wanted") -> Request:
        """Offers a prompt and gives its reference to the decode instance; nothing has been loaded yet."""
        params = self.prefill.offer(f"{name}-prefill", prompt)
        return self.decode.request(name, prompt, max_tokens, params=params)

    def settle(self) -> None:
        """Steps both until nothing is held any more."""
        for instance in (self.decode, self.prefill):
            instance.run_until(lambda instance=instance: not instance.scheduler.has_requests())


@contextmanager
def two_instances(
    folder: Path, model: Mapping[str, Layer] = FULL, prefill: Side | None = None, decode: Side | None = None,
    prefill_options: Mapping[str, Any] | None = None, whole: WholeModel | None = None, **decode_options: Any,
) -> Iterator[Two]:  # fmt: skip
    """Both instances, closed on leaving."""
    network, whole = MemoryNetwork(), whole or whole_of(dict(model))
    with ExitStack() as stack:
        made = []
        sides = ("kv_producer", prefill or Side(2), prefill_options), ("kv_consumer", decode or Side(1), decode_options)
        for role, side, options in sides:
            made.append(Instance(role, Engine(side, model, whole), network, folder, **options or {}))
            stack.callback(made[-1].close)
        yield Two(*made)


def stalled(folder: Path, **options: Any) -> AbstractContextManager[Two]:
    """The first read never completes."""
    return two_instances(folder, faults=scripted_faults([Fault(dropped=True)]), **options)


def check_settled(two: Two, free: int) -> None:
    """Nothing is held any more, and every id was reported once."""
    two.settle()
    assert two.decode.free_blocks == free
    assert two.prefill.free_blocks == two.prefill.engine.side.num_blocks - 1
    for instance in (two.prefill, two.decode):
        for kind in ("released", "loaded"):
            reported = instance.reported(kind)
            assert sorted(set(reported)) == sorted(reported)


def prompt_of(length: int, seed: int = 1) -> list[int]:
    """A prompt that shares no block with those of other seeds."""
    return [10 + (place * 7 + seed * 31) % 200 for place in range(length)]


__all__ = [
    "FULL", "MIXED", "SAMPLED", "WINDOW", "Instance", "RequestStatus", "Two", "check_settled", "prompt_of", "stalled",
    "two_instances",
]  # fmt: skip
