"""A prefill engine over NIXL in a process of its own, told what to do line by line.

The first line is the address to bind. Then every ``ID TOKENS`` prints the reference's parameters as JSON, every release
prints a line, and the end of input ends it.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import kvweave as kw
from kvweave.runtime import PrefillEngine, Released
from kvweave.transport.nixl import NixlTransport
from tests.runtime.memory import ATTENTION, EngineMemory, contents

BLOCKS = [9, 3, 12, 0, 7]
LAYOUT = kw.EngineLayout.build(ATTENTION, kw.ParallelConfig(tp=4), kw.CacheConfig(block_size=8, num_blocks=16))


def say(**record: object) -> None:
    sys.stdout.write(json.dumps(record) + "\n")  # in one piece: two threads speak
    sys.stdout.flush()


def told(released: Released) -> None:
    say(released=released.request_id, reason=released.reason.value)


def main() -> None:
    memory = EngineMemory(LAYOUT)
    memory.write(contents(ATTENTION, 1), {"full": BLOCKS})
    with PrefillEngine(
        memory.layout, transport=partial(NixlTransport, staging="auto"), bind=sys.stdin.readline().strip()
    ) as engine:
        say(address=engine.address)
        for line in sys.stdin:
            request_id, num_tokens = line.split()
            reference = engine.offer(request_id, int(num_tokens), BLOCKS, told)
            say(params=reference.params())


if __name__ == "__main__":
    main()
