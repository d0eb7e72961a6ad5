"""The prefill side of the load test, in a process of its own: ``python -m bench.load_source PAIR``.

Every line on its input is a number of requests to offer; each offer's parameters go out as one line of JSON. Which
blocks a request has follows from its number: a few tables take turns, and several requests may read one at a time, as
with a shared prefix. The end of input ends it.
"""

from __future__ import annotations

import itertools
import json
import sys

from bench.load_pair import PAIRS, Memory
from kvweave.runtime import PrefillEngine
from kvweave.transport.nixl import NixlTransport

TABLES = 8


def main() -> None:
    pair = PAIRS[sys.argv[1]]
    memory = Memory(pair.prefill_layout(TABLES), fill=0xA5)
    numbers = itertools.count()
    with PrefillEngine(memory.layout, transport=NixlTransport) as engine:
        for line in sys.stdin:
            for number in itertools.islice(numbers, int(line)):
                blocks = pair.table(pair.prefill_cache.block_size, number % TABLES)
                offered = engine.offer(f"request {number}", pair.num_tokens, {"full": blocks})
                if offered is not None:
                    sys.stdout.write(json.dumps(offered.params()) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
