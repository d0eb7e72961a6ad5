"""A request's ``kv_transfer_params``: what an API client, a proxy or vllm-router asks of this engine.

``do_remote_decode`` asks a prefill engine for an offer; its answer (``OfferReference.params``) says
``do_remote_prefill`` and goes to the decode engine, which fetches what it names. vLLM keeps the dictionary with its
request, also through preemption, so that a fetch which was once begun is marked in it.

A prompt may also be moved while it is prefilled: then both requests are sent at once, and both name under our own key
``kvweave`` the same ``transfer_id``, which nobody guesses; that for the decode engine names the prefill engine as
``peer`` besides.

A request that is fed while it runs (vLLM's streaming input, ``resumable``) asks for nothing: its prompt grows after it
was offered or fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def asks_for_offer(request: Any) -> bool:
    """Whether a request's prompt shall be offered to a decode engine."""
    return bool(_params(request).get("do_remote_decode"))


def names_offer(request: Any) -> bool:
    """Whether a request's prompt is to be fetched, and was not yet."""
    return bool(_params(request).get("do_remote_prefill"))


@dataclass(frozen=True, slots=True)
class FollowedTransfer:
    """A prompt that is offered while it is prefilled, and the ``host:port`` of the prefill engine that does it."""

    transfer_id: str
    peer: str


def offered_transfer(request: Any) -> str | None:
    """The transfer id under which a request's prompt shall be offered while it is prefilled."""
    transfer_id = _ours(request).get("transfer_id") if asks_for_offer(request) else None
    return transfer_id if isinstance(transfer_id, str) else None


def followed_transfer(request: Any) -> FollowedTransfer | None:
    """The transfer that a request's prompt is to be read from, where it names one and was not taken yet."""
    ours = _ours(request) if names_offer(request) else {}
    transfer_id, peer = ours.get("transfer_id"), ours.get("peer")
    return FollowedTransfer(transfer_id, peer) if isinstance(transfer_id, str) and isinstance(peer, str) else None


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


def _ours(request: Any) -> dict[str, Any]:
    ours = _params(request).get("kvweave")
    return ours if isinstance(ours, dict) else {}


def _params(request: Any) -> dict[str, Any]:
    params = request.kv_transfer_params
    return params if isinstance(params, dict) and not request.resumable else {}
