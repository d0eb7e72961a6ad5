"""The connector with one addition: workers save the live bytes of a request's blocks at its offer and at its delivery.

In vLLM's order of steps (``Scheduler.update_from_output``, ``KVConnectorModelRunnerMixin._get_kv_connector_output``)::

    offer      the prompt's last step is over; request_finished_all_groups; the next step's build_connector_meta;
               bind_connector_metadata on every worker: SAVED. vLLM frees the blocks after a later step's report at the
               earliest, whatever a decode engine has done by then.
    delivery   update_connector_output says that a load has ended, and vLLM takes the request up; the next step is the
               first one to compute it; its bind_connector_metadata: SAVED, before anything is written into its blocks.

What is saved are rows of the live tensors, by the block ids that vLLM's scheduler gave, and vLLM's own facts about
them. Nothing here asks kvweave what lies where.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group

from kvweave.integrations.vllm.connector import KVWeaveConnector
from kvweave.integrations.vllm.metadata import Finished

FOLDER = "recording_folder"


@dataclass(frozen=True)
class Moment:
    """A request whose bytes are to be saved. ``request`` is the id at its prefill engine.

    ``first`` and ``stop`` bound the tokens that were computed there, or loaded here, as vLLM counts them.
    """

    kind: str
    request: str
    block_ids: tuple[tuple[int, ...], ...]
    prompt_tokens: int
    first: int
    stop: int


@dataclass(frozen=True)
class Watched(Finished):
    """What goes to the workers, with the requests to save."""

    moments: tuple[Moment, ...] = ()


class RecordingConnector(KVWeaveConnector):  # type: ignore[misc]
    """KVWeaveConnector that saves what it offers and delivers below ``recording_folder`` of its extra config."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._folder = Path(vllm_config.kv_transfer_config.kv_connector_extra_config[FOLDER])
        self._computed: dict[str, int] = {}
        self._loading: dict[str, Moment] = {}
        self._due: list[Moment] = []
        self._tensors: dict[str, Any] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._computed[request.request_id] = num_computed_tokens
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        first = self._computed.pop(request.request_id, 0)
        if num_external_tokens:
            self._loading[request.request_id] = _moment(
                "delivery", request.kv_transfer_params["remote_request_id"], blocks.get_block_ids(), request,
                first, first + num_external_tokens,
            )  # fmt: skip

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        held, params = super().request_finished_all_groups(request, block_ids)
        if held and params is not None:
            stop = request.num_computed_tokens
            self._due.append(_moment("offer", params["remote_request_id"], block_ids, request, 0, stop))
        return held, params

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        for name in connector_output.finished_recving or ():
            moment = self._loading.pop(name, None)
            if moment is not None and name not in connector_output.failed_recving:
                self._due.append(moment)

    def build_connector_meta(self, scheduler_output: Any) -> Watched:
        finished = super().build_connector_meta(scheduler_output)
        moments, self._due = tuple(self._due), []
        return Watched(**{field.name: getattr(finished, field.name) for field in fields(Finished)}, moments=moments)

    def register_kv_caches(self, kv_caches: Any) -> None:
        self._tensors = dict(kv_caches)
        super().register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        for moment in getattr(connector_metadata, "moments", ()):
            self._save(moment)
        super().bind_connector_metadata(connector_metadata)

    def _save(self, moment: Moment) -> None:
        pp, tp = get_pp_group().rank_in_group, get_tp_group()
        config, facts, rows = self._kv_cache_config, [], {}
        for group, ids in zip(config.kv_cache_groups, moment.block_ids, strict=True):
            for layer in group.layer_names:
                if layer not in self._tensors:
                    continue
                kernels = self._tensors[layer].shape[0] // config.num_blocks
                rows[layer] = _rows(self._tensors[layer], ids, kernels)
                facts.append(_layer_facts(layer, group.kv_cache_spec, ids, self._isa(layer)))
        known = asdict(moment) | {
            "pp": pp, "tp": tp.rank_in_group, "tp_size": tp.world_size, "layers": facts,
            "mamba_cache_mode": self._vllm_config.cache_config.mamba_cache_mode,
            "dtype": str(self._vllm_config.model_config.dtype).removeprefix("torch."),
        }  # fmt: skip
        path = self._folder / f"{moment.kind} {moment.request} pp{pp} tp{tp.rank_in_group}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, facts=np.frombuffer(json.dumps(known).encode(), dtype=np.uint8), **rows)

    def _isa(self, layer: str) -> str | None:
        return getattr(self._vllm_config.compilation_config.static_forward_context.get(layer), "isa", None)


def _moment(kind: str, name: str, block_ids: Sequence[Any], request: Any, first: int, stop: int) -> Moment:
    ids = tuple(tuple(int(block) for block in group) for group in block_ids)
    return Moment(kind, str(name), ids, int(request.num_prompt_tokens), int(first), int(stop))


def _rows(tensor: Any, ids: Sequence[int], kernels: int) -> Any:
    """(block of the request, kernel block in it, head, state, bytes of content)."""
    index = torch.as_tensor([block * kernels + kernel for block in ids for kernel in range(kernels)], dtype=torch.long)
    found = tensor[index].contiguous().view(torch.uint8).cpu().numpy()
    return found.reshape(len(ids), kernels, *found.shape[1:])


def _layer_facts(layer: str, spec: Any, ids: Sequence[int], isa: str | None) -> dict[str, Any]:
    spec = getattr(spec, "kv_cache_specs", {}).get(layer, spec)
    return {
        "name": layer, "block_size": int(spec.block_size), "block_ids": list(ids), "isa": isa,
        "state_shapes": [list(shape) for shape in getattr(spec, "shapes", ())],
        "state_dtypes": [str(dtype).removeprefix("torch.") for dtype in getattr(spec, "dtypes", ())],
    }  # fmt: skip
