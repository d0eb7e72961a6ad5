"""The prefill side of ``bench.progressive``, in a process of its own: ``python -m bench.progressive_source``.

No model computes: a chunk is computed by waiting as long as it shall take. Every line on the input is one order in
JSON; the answer is one line with the moment at which the last token was prefilled, and the offer where one was made
for a reader that waits for it. The end of input ends it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.load_pair import Memory
from bench.progressive_pair import CHUNKS, NUM_TOKENS, blocks, layout
from kvweave.runtime import PrefillEngine
from kvweave.runtime.clock import boot_time
from kvweave.transport.nixl import NixlTransport


def prefill(engine: PrefillEngine, number: int, transfer_id: str | None, chunk_seconds: float) -> dict[str, Any]:
    """One prompt in chunks: offered at its end, or chunk by chunk to whoever follows ``transfer_id``."""
    name, tables = f"request {number}", {"full": blocks("prefill", number)}
    transfer = None if transfer_id is None else engine.begin_transfer(transfer_id, name)
    for chunk in range(1, CHUNKS):
        time.sleep(chunk_seconds)
        if transfer is not None:
            transfer.offer_chunk(NUM_TOKENS * chunk // CHUNKS, tables)
    time.sleep(chunk_seconds)
    at = boot_time()
    if transfer is not None:
        transfer.finish(NUM_TOKENS, tables)
        return {"at": at}
    offered = engine.offer(name, NUM_TOKENS, tables)
    return {"at": at, "params": None if offered is None else offered.params()}


def main() -> None:
    memory = Memory(layout(), fill=0xA5)
    with PrefillEngine(memory.layout, transport=NixlTransport) as engine:
        sys.stdout.write(json.dumps({"address": engine.address}) + "\n")
        sys.stdout.flush()
        for number, line in enumerate(sys.stdin):
            order = json.loads(line)
            sys.stdout.write(json.dumps(prefill(engine, number, **order)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
