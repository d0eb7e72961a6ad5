"""The two pairs that are compared: vLLM's prefill and decode servers, joined by this project and by NixlConnector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.vllm.contenders import KVWEAVE, NIXL
from tests.e2e.vllm.models import served_model
from tests.e2e.vllm.pairs import Place
from tests.e2e.vllm.servers import Progress, Server, running


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode server."""

    name: str
    prefill: Server
    decode: Server


@contextmanager
def both_pairs(model: str, folder: Path, shapes: Sequence[str], progress: Progress) -> Iterator[list[Pair]]:
    """Four servers, started side by side; ``shapes`` are those of the prefill and of the decode servers."""
    made = served_model(model, folder / "models")
    places = [Place(side, shape) for side, shape in zip(("prefill", "decode"), shapes, strict=True)]
    deployments = [
        contender.deployment(model, made, place, folder / "records")
        for contender in (KVWEAVE, NIXL)
        for place in places
    ]
    with running(deployments, folder / "logs", progress) as servers:
        yield [Pair(KVWEAVE.name, *servers[:2]), Pair(NIXL.name, *servers[2:])]
