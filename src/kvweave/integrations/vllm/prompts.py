"""Which prompt an offer is of: a digest of everything that its cache depends on beside the model.

A reference comes back through a client. One that belongs to another prompt, another adapter or another picture must
never be loaded, even where its length would fit, so the digest travels with it and is compared with the request's own.

====================  ================================================================================================
what                  how it is named
====================  ================================================================================================
token ids             themselves
prompt embeddings     their bytes, and which places of a mixed prompt they fill
LoRA adapter          its name and a sample of its weights (``fingerprint``)
pictures, sounds      vLLM's identifier of each, which is a hash of its content or the user's own uuid, and its place
====================  ================================================================================================
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.utils import tensor_data

from kvweave.integrations.vllm.fingerprint import fingerprint

_KEY = "prompt"
_ADAPTER_SETTINGS = "adapter_config.json"
MOST_ADAPTERS = 1024


def prompt_digest(request: Any, num_tokens: int) -> str:
    """The digest of a request's first tokens, its LoRA adapter and the media among them."""
    digest = hashlib.sha256(repr(_adapter(request.lora_request)).encode())
    if request.prompt_token_ids is not None:
        digest.update(b"tokens" + np.asarray(request.prompt_token_ids[:num_tokens], dtype=np.int64).tobytes())
    if request.prompt_is_token_ids is not None:
        digest.update(b"places" + bytes(request.prompt_is_token_ids[:num_tokens]))
    if request.prompt_embeds is not None:
        digest.update(b"embeddings" + _bytes(request.prompt_embeds[:num_tokens]))
    for feature in request.mm_features:
        place = feature.mm_position
        if place.offset < num_tokens:
            digest.update(repr((feature.modality, feature.identifier, place.offset, place.length)).encode())
    return digest.hexdigest()[:32]


def sign_params(params: dict[str, Any], request: Any, num_tokens: int) -> dict[str, Any]:
    """The params of an offer with its prompt's digest in our part of them."""
    return params | {"kvweave": {**params["kvweave"], _KEY: prompt_digest(request, num_tokens)}}


def is_of(params: dict[str, Any], request: Any, num_tokens: int) -> bool:
    """Whether an offer of that many tokens is of the beginning of a request's prompt; one without digest is of none."""
    stated = params["kvweave"].get(_KEY)
    return bool(num_tokens < request.num_prompt_tokens and stated == prompt_digest(request, num_tokens))


def _bytes(embeddings: Any) -> bytes:
    """Type, shape and content of a tensor."""
    return f"{embeddings.dtype} {tuple(embeddings.shape)}".encode() + bytes(tensor_data(embeddings))


def _adapter(lora_request: Any) -> tuple[str, str] | None:
    """An adapter's name and a fingerprint of its files, which another load of the same name may have replaced."""
    if lora_request is None:
        return None
    folder = Path(lora_request.lora_path)
    changed = max((file.stat().st_mtime_ns for file in folder.glob("adapter_*")), default=0)
    return lora_request.lora_name, _adapter_fingerprint(str(folder), changed)


@lru_cache(MOST_ADAPTERS)
def _adapter_fingerprint(folder: str, _changed: int) -> str:
    settings = Path(folder) / _ADAPTER_SETTINGS
    text = settings.read_bytes() if settings.is_file() else b""
    return fingerprint(folder) + hashlib.sha256(text).hexdigest()[:16]
