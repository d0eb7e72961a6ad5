"""What becomes of one client's request when its prefill and its decode begin at the same time: two bodies, one id.

::

    client's body  ->  prefill server   one token, no stream, do_remote_decode,  kvweave: transfer_id
                   ->  decode server    as it came,           do_remote_prefill, kvweave: transfer_id, peer

The id is made here, for one request, and is known to both servers alone: whoever knows it may read the prompt's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvweave.errors import ConfigurationError

Body = dict[str, Any]

_ONE_TOKEN = ("max_tokens", "max_completion_tokens")
_ANSWER_ONLY = ("stream", "stream_options", "n", "best_of", "min_tokens", "use_beam_search", "logprobs", "top_logprobs")


@dataclass(frozen=True, slots=True)
class PrefillServer:
    """A vLLM that prefills, and the control channel of each of its data parallel ranks (``host:port``)."""

    url: str
    peers: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> PrefillServer:
        """From ``URL@host:port,host:port``; raises ``ConfigurationError`` for anything else.

        >>> PrefillServer.parse("http://127.0.0.1:8001@127.0.0.1:8003")
        PrefillServer(url='http://127.0.0.1:8001', peers=('127.0.0.1:8003',))
        """
        url, _, peers = text.rpartition("@")
        if not url or not peers:
            raise ConfigurationError(f"prefill server {text!r}: write URL@host:port, the port of its control channel")
        return PrefillServer(url, tuple(peers.split(",")))

    def __str__(self) -> str:
        return f"{self.url}@{','.join(self.peers)}"


@dataclass(slots=True)
class Turns:
    """Who has how many requests open; the next one goes to whoever has fewest, in turn where several do."""

    places: Sequence[Any]
    _open: list[int] = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._open = [0] * len(self.places)

    def take(self) -> int:
        """The place of the next request; it is open until ``leave``."""
        order = [(self._next + n) % len(self.places) for n in range(len(self.places))]
        chosen = min(order, key=self._open.__getitem__)
        self._next = (chosen + 1) % len(self.places)
        self._open[chosen] += 1
        return chosen

    def leave(self, place: int) -> None:
        """A request has ended."""
        self._open[place] -= 1


def is_one_prompt(body: Body) -> bool:
    """Whether a request asks about one prompt: of several, as ``/v1/completions`` takes, each would need its own id."""
    prompt = body.get("prompt")
    if "messages" in body or isinstance(prompt, str):
        return True
    return isinstance(prompt, list) and bool(prompt) and all(isinstance(token, int) for token in prompt)


def prefill_body(body: Mapping[str, Any], transfer_id: str) -> Body:
    """What the prefill server is asked: the same prompt, and one token that nobody reads."""
    kept = {name: value for name, value in body.items() if name not in _ANSWER_ONLY}
    limits = {name: 1 for name in _ONE_TOKEN if name in body} or {"max_tokens": 1}
    params = {"do_remote_decode": True, "do_remote_prefill": False, "kvweave": {"transfer_id": transfer_id}}
    return kept | limits | {"stream": False, "kv_transfer_params": params}


def decode_body(body: Mapping[str, Any], transfer_id: str, peer: str) -> Body:
    """What the decode server is asked: everything, and where the prompt's cache comes from."""
    ours = {"transfer_id": transfer_id, "peer": peer}
    params = {"do_remote_decode": False, "do_remote_prefill": True, "kvweave": ours}
    return dict(body) | {"kv_transfer_params": params}
