"""Starts one real vLLM engine on the CPU with the recording connector, prefills a prompt, and compares every array read
out of its live memory with what transformers caches for the same model and prompt.

``python -m tests.integrations.vllm.real_engine FAMILY [TP]`` prints one JSON line: parts compared, largest difference.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
}  # fmt: skip
PROMPT = [(7 * place + 3) % 250 for place in range(77)]
_HALF = ("qwen3-next", "deepseek-v2", "deepseek-v3")
OVERRIDES: dict[str, dict[str, Any]] = {
    "granite-4": {"hidden_size": 256, "mamba_d_head": 64},
    "qwen3-next": {"head_dim": 64, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "deepseek-v2": {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64},
}


def main(family: str, tp: int) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    from tests.integrations.vllm.recording_connector import SEEN

    with tempfile.TemporaryDirectory() as folder:
        save(family, Path(folder))
        connector = KVTransferConfig(
            kv_connector="RecordingConnector", kv_role="kv_producer",
            kv_connector_module_path="tests.integrations.vllm.recording_connector",
        )  # fmt: skip
        engine = LLM(
            model=folder, dtype=dtype_of(family), enforce_eager=True, max_model_len=512, tensor_parallel_size=tp,
            kv_transfer_config=connector, enable_prefix_caching=False, skip_tokenizer_init=True, max_num_seqs=4,
        )  # fmt: skip
        engine.generate({"prompt_token_ids": PROMPT}, SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
        report = compare(Path(folder), family) if tp == 1 else {}
    assert SEEN.layout is not None
    return report | {
        "ranks": len(SEEN.layout.ranks),
        "groups": [len(ids) for ids in SEEN.block_ids],
        "shards": [len(rank.shards) for rank in SEEN.layout.ranks],
        "layers": sum(1 for _ in SEEN.layout.model.layers()),
    }


def save(family: str, folder: Path) -> None:
    """The family's tiny model, with the sizes that vLLM's CPU kernels ask for."""
    from kvweave.engines.hf import tiny
    from kvweave.engines.hf.families import FAMILIES, TinyFamily

    chosen = FAMILIES[family]
    values = dict(chosen.values) | OVERRIDES.get(family, {})
    tiny.FAMILIES = {family: TinyFamily(chosen.model_type, values)}
    tiny.tiny_model(family, folder)


def dtype_of(family: str) -> str:
    return "bfloat16" if family in _HALF else "float32"


def compare(folder: Path, family: str) -> dict[str, Any]:
    """Largest relative difference of every part, and how many arrays were compared."""
    import numpy as np

    from kvweave.engines.hf.runner import ModelRunner
    from tests.integrations.vllm.recording_connector import SEEN

    runner = ModelRunner.load(folder)
    captured = runner.capture(runner.prefill(PROMPT))
    assert SEEN.layout is not None
    wanted = {(index_in(runner.model)[layer], part): array for (layer, part), array in captured.arrays.items()}
    number = index_in(SEEN.layout.model)
    worst: dict[str, float] = {}
    first: dict[str, float] = {}
    first_layer = min(number[layer] for layer, _ in SEEN.arrays)
    for (layer, part), (entry, found) in SEEN.arrays.items():
        array = wanted.pop((number[layer], part))
        start = max(entry, array.first_entry)
        is_state = part.startswith(("conv", "ssm"))
        mine = found if is_state else found[start - entry :]
        theirs = array.data if is_state else array.data[start - array.first_entry :]
        theirs = np.asarray(theirs).reshape(mine.shape)
        if part == "latent":  # the two rotate their tiny models by different angles, so only token 0's rotated part
            latent = runner.network.config.kv_lora_rank
            mine[1:, latent:], theirs = 0.0, theirs.copy()
            theirs[1:, latent:] = 0.0
        scale = float(np.abs(theirs).max()) or 1.0
        difference = float(np.abs(mine - theirs).max()) / scale
        worst[part] = max(worst.get(part, 0.0), difference)
        if number[layer] == first_layer:
            first[part] = difference
    return {"worst": worst, "first": first, "arrays": len(SEEN.arrays), "left": [list(key) for key in wanted]}


def index_in(model: Any) -> dict[str, int]:
    return {layer.name: layer.index for layer in model.layers()}


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    print("RESULT " + json.dumps(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1)), flush=True)
