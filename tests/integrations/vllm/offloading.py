"""The worker's part of vLLM's OffloadingConnector without a device: blocks go to a dictionary and back.

As in vLLM (``offloading/worker.py``) a store is carried out at the beginning of the next step, or at once where the
scheduler says that its blocks are taken for something else (``jobs_to_flush``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata


@dataclass
class HostStore:
    """What one engine has offloaded, by chunk; every layer's tensor has its blocks first."""

    tensors: Mapping[str, torch.Tensor]
    chunks: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    deferred: dict[int, Any] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)

    def step(self, metadata: Any) -> tuple[OffloadingWorkerMetadata, set[str]]:
        """Carries out a step's jobs; which are completed, and requests that are loaded."""
        done = OffloadingWorkerMetadata()
        for job in metadata.jobs_to_flush or ():
            if job in metadata.store_jobs:
                self.deferred[job] = metadata.store_jobs.pop(job)
        for job, transfer in self.deferred.items():
            self._store(transfer)
            done.mark_completed(job)
        for job, transfer in metadata.load_jobs.items():
            self._load(transfer)
            self.loaded.append(transfer.req_id)
            done.mark_completed(job)
        self.deferred = dict(metadata.store_jobs)
        return done, {transfer.req_id for transfer in metadata.load_jobs.values()}

    def _store(self, transfer: Any) -> None:
        for block, chunk in zip(transfer.src_spec.block_ids, transfer.dst_spec.block_ids, strict=True):
            self.chunks[int(chunk)] = {layer: tensor[int(block)].clone() for layer, tensor in self.tensors.items()}

    def _load(self, transfer: Any) -> None:
        for chunk, block in zip(transfer.src_spec.block_ids, transfer.dst_spec.block_ids, strict=True):
            for layer, tensor in self.tensors.items():
                tensor[int(block)] = self.chunks[int(chunk)][layer]
