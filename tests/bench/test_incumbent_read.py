from __future__ import annotations

from importlib.util import find_spec

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from bench.incumbent_read import vllm_functions

from kvweave.benchmarks.memory import CacheShape, scattered
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.source import Source


def test_there_are_functions_where_vllm_is() -> None:
    assert (vllm_functions() is not None) is (find_spec("vllm") is not None)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's own functions need vLLM")
def test_vllms_own_functions_bring_the_right_bytes() -> None:
    functions = vllm_functions()
    assert functions is not None
    with Source() as source:
        pair = Pair(source, CacheShape(512, 8))
        tables = scattered(8, 4, seed=1), scattered(8, 4, seed=2)
        with pair.incumbent() as reader:
            assert functions(reader)(*tables) > 0
            pair.require_delivered(*tables)
