"""A request's ``kv_transfer_params``: what an API client, a proxy or vllm-router asks of this engine.

``do_remote_decode`` asks a prefill engine for an offer; its answer (``OfferReference.params``) says
``do_remote_prefill`` and goes to the decode engine, which fetches what it names. vLLM keeps the dictionary with its
request, also through preemption, so that a fetch which was once begun is marked in it.
"""

from __future__ import annotations

from typing import Any


def asks_for_offer(request: Any) -> bool:
    """Whether a request's prompt shall be offered to a decode engine."""
    return bool(_params(request).get("do_remote_decode"))


def names_offer(request: Any) -> bool:
    """Whether a request's prompt is to be fetched, and was not yet."""
    return bool(_params(request).get("do_remote_prefill"))


def mark_taken(request: Any) -> None:
    """The offer is dealt with: nothing is fetched for this request again."""
    if names_offer(request):
        request.kv_transfer_params["do_remote_prefill"] = False


def _params(request: Any) -> dict[str, Any]:
    params = request.kv_transfer_params
    return params if isinstance(params, dict) else {}
