"""Which prompt an offer is of: a digest of everything that its cache depends on beside the weights.

A reference comes back through a client. One that belongs to another prompt, another adapter or another picture must
never be loaded, even where its length would fit, so the digest travels with it and is compared with the request's own.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

_KEY = "prompt"


def prompt_digest(request: Any, num_tokens: int) -> str | None:
    """The digest of a request's first tokens, its LoRA adapter and the media among them; None without token ids."""
    if request.prompt_token_ids is None:
        return None
    digest = hashlib.sha256(np.asarray(request.prompt_token_ids[:num_tokens], dtype=np.int64).tobytes())
    lora = request.lora_request
    digest.update(repr(None if lora is None else lora.lora_name).encode())
    for feature in request.mm_features:
        place = feature.mm_position
        if place.offset < num_tokens:
            digest.update(repr((feature.identifier, place.offset, place.length)).encode())
    return digest.hexdigest()[:32]


def sign_params(params: dict[str, Any], request: Any, num_tokens: int) -> dict[str, Any]:
    """The params of an offer with its prompt's digest in our part of them."""
    return params | {"kvweave": {**params["kvweave"], _KEY: prompt_digest(request, num_tokens)}}


def is_of(params: dict[str, Any], request: Any, num_tokens: int) -> bool:
    """Whether an offer of that many tokens is of the beginning of a request's prompt, as far as its params say so."""
    stated = params["kvweave"].get(_KEY)
    own = prompt_digest(request, num_tokens)
    return num_tokens < request.num_prompt_tokens and (None in (stated, own) or stated == own)
