"""Whether two servers compute the same: a hash of a sample of the checkpoint, the same however it is cut in files.

A fine-tune has the shapes of its base, so shapes cannot tell them apart. Of a safetensors checkpoint the tensors'
names, types and shapes are hashed, and a few bytes from the middle of up to ``SAMPLED_TENSORS`` of them; of other files
their sizes and a few bytes from ``SAMPLED_PIECES`` places.

The same weights compute something else under other options: positions that are scaled, values that are quantised. So
``config.json`` and what vLLM was told beside it are hashed too, and a draft model with its own weights. The three stand
apart, so that a log shows which of them differs::

    weights 5d1c..., options 09af..., draft eagle 77b2...
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvweave.integrations.vllm.support import CACHELESS_DRAFTERS

SAMPLED_TENSORS = 256
SAMPLED_PIECES = 256
PIECE_BYTES = 1024
MOST_HEADER_BYTES = 100 << 20
_OTHER_FILES = ("*.gguf", "*.bin", "*.pt")
_CONFIG = "config.json"
_NO_OPTIONS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
"""Keys of ``config.json`` that change nothing in a cache, or are compared with the arrays themselves."""


@dataclass(frozen=True, slots=True, order=True)
class _Tensor:
    name: str
    kind: str
    file: Path
    start: int
    stop: int


def model_identity(vllm_config: Any) -> str:
    """What both sides must agree on, readable in a log; empty where no weights are found here, which says nothing."""
    model = vllm_config.model_config
    weights = fingerprint(model.model, model.revision)
    if not weights:
        return ""
    parts = [f"weights {weights}", f"options {_options(model)}"]
    speculation = vllm_config.speculative_config
    if speculation is not None and speculation.method not in CACHELESS_DRAFTERS:
        draft = speculation.draft_model_config
        parts.append(f"draft {speculation.method} {fingerprint(draft.model, draft.revision)}")
    return ", ".join(parts)


def fingerprint(model: str | Path, revision: str | None = None) -> str:
    """The fingerprint of a checkpoint on this machine: a folder, a file, or a name in Hugging Face's cache.

    Empty where no weights are found here; nothing is then said about them.
    """
    files = list(_files(_folder(model, revision)))
    tensors = [tensor for file in files if file.suffix == ".safetensors" for tensor in _tensors(file)]
    if tensors:
        return _digest(_tensor_samples(sorted(tensors)))
    return _digest(_file_samples(files)) if files else ""


def _options(model: Any) -> str:
    """A hash of ``config.json`` and of what vLLM was told to change in it."""
    file = _folder(model.hf_config_path or model.model, model.revision) / _CONFIG
    config = json.loads(file.read_text()) if file.is_file() else {}
    kept = {key: value for key, value in config.items() if key not in _NO_OPTIONS}
    quantised = None if "quantization_config" in config else model.quantization
    overrides = getattr(model.hf_overrides, "__qualname__", model.hf_overrides)
    return _digest([json.dumps([kept, overrides, quantised], sort_keys=True, default=str).encode()])[:16]


def _folder(model: str | Path, revision: str | None) -> Path:
    path = Path(model)
    if path.exists():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(model), revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return path


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    found = sorted(path.glob("*.safetensors"))
    for pattern in _OTHER_FILES if not found else ():
        found += sorted(path.glob(pattern))
    yield from found


def _tensors(file: Path) -> Iterator[_Tensor]:
    """The tensors that a safetensors file's header names; none where there is no such header."""
    with file.open("rb") as stream:
        head = stream.read(8)
        size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 0 < size <= MOST_HEADER_BYTES:
            return
        try:
            header = json.loads(stream.read(size))
        except ValueError:
            return
    for name, tensor in header.items():
        if name != "__metadata__":
            start, stop = tensor["data_offsets"]
            yield _Tensor(name, f"{tensor['dtype']}{tensor['shape']}", file, 8 + size + start, 8 + size + stop)


def _tensor_samples(tensors: list[_Tensor]) -> Iterator[bytes]:
    yield "\n".join(f"{tensor.name} {tensor.kind}" for tensor in tensors).encode()
    step = -(-len(tensors) // SAMPLED_TENSORS)
    for tensor in tensors[::step]:
        middle = (tensor.start + tensor.stop) // 2
        yield _piece(tensor.file, middle, min(PIECE_BYTES, tensor.stop - middle))


def _file_samples(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        size = file.stat().st_size
        yield str(size).encode()
        for number in range(SAMPLED_PIECES):
            yield _piece(file, size * number // SAMPLED_PIECES, PIECE_BYTES)


def _piece(file: Path, start: int, nbytes: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(start)
        return stream.read(nbytes)


def _digest(samples: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(struct.pack("<Q", len(sample)))
        digest.update(sample)
    return digest.hexdigest()[:32]
