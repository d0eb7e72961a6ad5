from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's own functions need vLLM")
def test_the_readers_agent_ends_with_it() -> None:
    """In a process of its own, that has not imported vLLM before: an import that fails keeps what its caller has."""
    found = subprocess.run([sys.executable, "-c", _READ], check=False, capture_output=True, text=True, timeout=300)
    assert found.stdout.splitlines()[-1:] == ["ended"], found.stderr


_READ = """
import weakref
from bench.incumbent_read import vllm_functions
from kvweave.benchmarks.memory import CacheShape
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.source import Source

def main():
    functions = vllm_functions()
    with Source() as source, Pair(source, CacheShape(512, 8)).incumbent() as reader:
        functions(reader)([1], [2])
        agent = weakref.ref(reader.agent)
        del reader
    print("ended" if agent() is None else "alive")

if __name__ == "__main__":
    main()
"""
