"""Fingerprints: the same weights however they are cut in files, another one for every other checkpoint."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from kvweave.integrations.vllm.fingerprint import fingerprint

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
