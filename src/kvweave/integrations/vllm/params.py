"""A request's ``kv_transfer_params``: what an API client, a proxy or vllm-router asks of this engine.

``do_remote_decode`` asks a prefill engine for an offer; its answer (``OfferReference.params``) says
``do_remote_prefill`` and goes to the decode engine, which fetches what it names. vLLM keeps the dictionary with its
request, also through preemption, so that a fetch which was once begun is marked in it.

A request that is fed while it runs (vLLM's streaming input, ``resumable``) asks for nothing: its prompt grows after it
was offered or fetched.
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


def nothing_offered() -> dict[str, Any]:
    """The answer where nothing is offered; proxies pass it on, and the decode engine computes the whole prompt."""
    return {"do_remote_prefill": False, "do_remote_decode": False}


def is_offered(params: dict[str, Any] | None) -> bool:
    """Whether an answer names an offer, whose blocks must then stay."""
    return bool(params and params.get("do_remote_prefill"))


def _params(request: Any) -> dict[str, Any]:
    params = request.kv_transfer_params
    return params if isinstance(params, dict) and not request.resumable else {}
