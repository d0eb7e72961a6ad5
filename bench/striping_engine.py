"""One process of the striping bench: ``python -m bench.striping_engine rank|control|decode``, told what to do in JSON.

==========  ============================================================================================================
rank        holds the cache of one prefill rank: says how it is reached, and serves until its input ends
control     both prefill engines over these ranks, ``all`` four and ``one`` (rank 0 alone): says their addresses, then
            offers all blocks in as many requests as each line asks for
decode      an engine of tp 1: says when it is connected to both, then for each line fetches these references, all from
            the stated moment on, and says when the last byte was there and from which ranks they came
==========  ============================================================================================================

The requests of a line fill the whole memory, each has an equal part of it, at the same blocks on both sides.
"""

from __future__ import annotations

import base64
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np

import kvweave as kw
from kvweave.core.layout import EngineLayout, RankLayout, Region
from kvweave.runtime import DecodeEngine, PrefillEngine
from kvweave.runtime.handle import Delivered
from kvweave.runtime.links import RankLink
from kvweave.runtime.local_channel import Endpoint
from kvweave.runtime.rank_service import RankService

MODEL = "deepseek-v3"
RANKS = 4
BLOCK = 16
WAYS = {"all": RANKS, "one": 1}
"""Prefill engines over the same memory, by the number of ranks that they name."""
PATIENCE_SECONDS = 60.0


def layout_of(tp: int, blocks: int) -> EngineLayout:
    """An engine with room for so many blocks."""
    return EngineLayout.build(kw.models.load(MODEL), kw.ParallelConfig(tp=tp), kw.CacheConfig(BLOCK, num_blocks=blocks))


def memory_of(rank: RankLayout, *, filled: bool) -> list[np.ndarray]:
    """A rank's regions: the same bytes on every rank, or nothing."""
    sizes = enumerate(region.nbytes for region in rank.regions)
    if not filled:
        return [np.zeros(nbytes, np.uint8) for _, nbytes in sizes]
    return [np.random.default_rng(number).integers(1, 256, nbytes, np.uint8) for number, nbytes in sizes]


def located(layout: EngineLayout, rank: int, regions: list[list[int]]) -> EngineLayout:
    """The layout with one rank's regions where they are."""
    return layout.relocated(layout.ranks[rank].coordinates, [Region(*region) for region in regions])


def places(memory: list[np.ndarray]) -> list[list[int]]:
    return [[array.ctypes.data, array.nbytes] for array in memory]


def say(**record: object) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def told() -> Iterator[Mapping[str, Any]]:
    return map(json.loads, sys.stdin)


def rank(blocks: int) -> None:
    from kvweave.transport.nixl import NixlTransport  # only where bytes are moved: it takes seconds

    layout = layout_of(RANKS, blocks)
    memory = memory_of(layout.ranks[0], filled=True)
    name = f"prefill {time.monotonic_ns()}"
    service = RankService(name, located(layout, 0, places(memory)).ranks[0], NixlTransport(name), list(WAYS))
    endpoints = {way: [end.path, end.token.hex()] for way, end in service.endpoints.items()}
    agent_data = base64.b64encode(service.agent_data).decode()
    say(endpoints=endpoints, agent_data=agent_data, regions=places(memory))
    for _ in told():
        pass
    service.close()


def control(blocks: int, address: str, subnet: str) -> None:
    orders = told()
    ranks = next(orders)["ranks"]
    numbers = itertools.count()
    with ExitStack() as stack:
        engines = {way: stack.enter_context(_prefill(way, ranks, blocks, f"{address}:0", subnet)) for way in WAYS}
        say(addresses=[engine.address for engine in engines.values()])
        for order in orders:
            engine, tables = engines[order["way"]], _tables(blocks, order["requests"])
            offers = [engine.offer(f"request {next(numbers)}", len(table) * BLOCK, table) for table in tables]
            say(references=[offer.params() for offer in offers if offer is not None])


def _prefill(way: str, ranks: list[Mapping[str, Any]], blocks: int, bind: str, subnet: str) -> PrefillEngine:
    layout, links = layout_of(WAYS[way], blocks), []
    for number, one in enumerate(ranks[: WAYS[way]]):
        address, token = one["endpoints"][way]
        layout = located(layout, number, one["regions"])
        links.append(RankLink(Endpoint(address, bytes.fromhex(token)), base64.b64decode(one["agent_data"])))
    return PrefillEngine(layout, workers=links, bind=bind, peers=[subnet])


def _tables(blocks: int, requests: int) -> list[list[int]]:
    return [part.tolist() for part in np.array_split(np.arange(blocks), requests)]


def decode(blocks: int, addresses: list[str]) -> None:
    from kvweave.transport.nixl import NixlTransport

    layout = layout_of(1, blocks)
    memory, right = (memory_of(layout.ranks[0], filled=filled) for filled in (False, True))
    transport = partial(NixlTransport, same_host=False)  # its hosts are one machine, and the links are what is measured
    with DecodeEngine(located(layout, 0, places(memory)), transport=transport, peers=addresses) as engine:
        for address in addresses:
            engine.connect(address).result(PATIENCE_SECONDS)
        say(connected=True)
        for order in told():
            for array in memory:
                array.fill(0)
            tables = _tables(blocks, len(order["references"]))
            time.sleep(max(0.0, order["start"] - time.monotonic()))
            fetches = [engine.fetch(*one) for one in zip(order["references"], tables, strict=True)]
            delivered = [fetch.result(PATIENCE_SECONDS) for fetch in fetches]
            ended = time.monotonic()
            wrong = sum(int(np.count_nonzero(here != there)) for here, there in zip(memory, right, strict=True))
            say(ended=ended, bytes_from=_bytes_from(delivered), wrong_bytes=wrong)


def _bytes_from(delivered: list[Delivered]) -> dict[int, int]:
    """By the tp rank of the source, over all requests."""
    found = Counter[int]()
    for one in delivered:
        for sources in one.sources.values():
            found.update({source.tp: nbytes for source, nbytes in sources.items()})
    return dict(found)


ROLES: dict[str, Callable[..., None]] = {"rank": rank, "control": control, "decode": decode}

if __name__ == "__main__":
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
