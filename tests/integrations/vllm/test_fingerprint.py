"""Fingerprints: the same weights however they are cut in files, another one for every other checkpoint."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvweave.integrations.vllm.fingerprint import fingerprint, model_identity

Weights = dict[str, np.ndarray]


def weights(seed: int = 0) -> Weights:
    random = np.random.default_rng(seed)
    return {f"model.layers.{n}.weight": random.standard_normal((40, 30)).astype(np.float32) for n in range(6)}


def save(file: Path, tensors: Weights) -> None:
    header, start = {}, 0
    for name, tensor in tensors.items():
        stop = start + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values()))


def saved(folder: Path, tensors: Weights, files: int = 1) -> Path:
    folder.mkdir()
    names = list(tensors)
    for number in range(files):
        save(folder / f"model-{number}.safetensors", {name: tensors[name] for name in names[number::files]})
    return folder


def test_the_same_weights_in_other_files(tmp_path: Path) -> None:
    one, three = saved(tmp_path / "one", weights()), saved(tmp_path / "three", weights(), 3)
    assert fingerprint(one) == fingerprint(three) != ""


def test_a_fine_tune_of_equal_shape(tmp_path: Path) -> None:
    base, tuned = saved(tmp_path / "base", weights()), saved(tmp_path / "tuned", weights(1))
    assert fingerprint(base) != fingerprint(tuned)


def test_one_layer_of_other_weights(tmp_path: Path) -> None:
    changed = weights() | {"model.layers.3.weight": np.ones((40, 30), np.float32)}
    assert fingerprint(saved(tmp_path / "base", weights())) != fingerprint(saved(tmp_path / "changed", changed))


def test_other_shapes_with_the_same_bytes(tmp_path: Path) -> None:
    turned = {name: tensor.reshape(30, 40) for name, tensor in weights().items()}
    assert fingerprint(saved(tmp_path / "base", weights())) != fingerprint(saved(tmp_path / "turned", turned))


@pytest.mark.parametrize("name", ["model.gguf", "pytorch_model.bin"])
def test_other_kinds_of_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(256)) * 10)
    first = fingerprint(tmp_path)
    (tmp_path / name).write_bytes(bytes(range(255, -1, -1)) * 10)
    assert first != fingerprint(tmp_path) != ""


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"weights")
    assert fingerprint(tmp_path / "model.gguf") == fingerprint(tmp_path) != ""


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 1 << 40) + b"x", struct.pack("<Q", 4) + b"text"])
def test_a_file_that_is_no_checkpoint_is_told_apart_by_its_bytes(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert fingerprint(tmp_path) != ""


@pytest.mark.parametrize("model", ["somebody/not-here", "no such name"])
def test_nothing_is_said_of_weights_that_are_not_here(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fingerprint(model) == ""


def test_nothing_is_said_of_a_folder_without_weights(tmp_path: Path) -> None:
    assert fingerprint(tmp_path) == ""


def config_of(model: Path, draft: Path | None = None, method: str = "draft_model", **changes: object) -> Any:
    values = {"revision": None, "hf_config_path": None, "hf_overrides": {}, "quantization": None}
    speculation = None
    if draft is not None:
        drafter = SimpleNamespace(model=str(draft), revision=None)
        speculation = SimpleNamespace(method=method, draft_model_config=drafter)
    named = SimpleNamespace(model=str(model), **values | changes)
    return SimpleNamespace(model_config=named, speculative_config=speculation)


def served(folder: Path, seed: int = 0, **config: object) -> Path:
    saved(folder, weights(seed))
    (folder / "config.json").write_text(json.dumps({"rope_theta": 1e4, "transformers_version": "5"} | config))
    return folder


def test_the_same_model_elsewhere_has_the_same_identity(tmp_path: Path) -> None:
    one, other = served(tmp_path / "one"), served(tmp_path / "other", transformers_version="6")
    assert model_identity(config_of(one)) == model_identity(config_of(other)) != ""


@pytest.mark.parametrize(
    "changes",
    [{"hf_overrides": {"rope_theta": 1e6}}, {"quantization": "fp8"}, {"hf_overrides": served}],
    ids=["overrides", "quantised", "a function"],
)
def test_the_same_weights_under_other_options(tmp_path: Path, changes: dict[str, object]) -> None:
    folder = served(tmp_path / "model")
    one, other = model_identity(config_of(folder)), model_identity(config_of(folder, **changes))
    assert one.split(", ")[0] == other.split(", ")[0]
    assert one != other


def test_another_config_of_the_same_weights(tmp_path: Path) -> None:
    one, other = served(tmp_path / "one"), served(tmp_path / "other", rope_theta=1e6)
    assert model_identity(config_of(one)) != model_identity(config_of(other))


def test_a_quantised_checkpoint_is_the_same_whatever_kernel_runs_it(tmp_path: Path) -> None:
    folder = served(tmp_path / "model", quantization_config={"quant_method": "awq"})
    kernels = [model_identity(config_of(folder, quantization=name)) for name in ("awq", "awq_marlin")]
    assert kernels[0] == kernels[1]


def test_a_draft_model_is_part_of_it(tmp_path: Path) -> None:
    model, draft, tuned = (served(tmp_path / name, seed) for seed, name in enumerate(("model", "draft", "tuned")))
    found = {model_identity(config_of(model, drafter)) for drafter in (None, draft, tuned)}
    found.add(model_identity(config_of(model, draft, "eagle")))
    assert len(found) == 4


def test_a_drafter_without_a_cache_is_not(tmp_path: Path) -> None:
    model = served(tmp_path / "model")
    assert model_identity(config_of(model, model, "ngram")) == model_identity(config_of(model))


def test_nothing_is_said_of_a_model_without_weights(tmp_path: Path) -> None:
    assert model_identity(config_of(tmp_path)) == ""
