from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError)
from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.overhead import overhead
from kvweave.benchmarks.raw_nixl import IncumbentReader
from kvweave.benchmarks.source import Source


def test_without_vllm_there_is_a_note_instead_of_a_limit(source: Source, tiny: Effort) -> None:
    lines = {line.key: line for line in overhead(source, tiny)}
    assert list(lines) == [
        f"overhead.{name}.{of}" for name in ("contiguous", "fragmented") for of in ("incumbent", "share")
    ]
    assert lines["overhead.fragmented.incumbent"].limit is None
    assert "make bench" in lines["overhead.fragmented.incumbent"].note
    assert lines["overhead.fragmented.share"].limit is not None


def test_the_incumbents_own_functions_are_measured_where_given(source: Source, tiny: Effort) -> None:
    def functions(reader: IncumbentReader) -> Callable[[Sequence[int], Sequence[int]], float]:
        return reader.cost

    line = next(iter(overhead(source, tiny, functions)))
    assert line.values[-1].name == "vLLM's functions" and line.limit is not None and not line.note


def test_nixls_other_calls_are_counted_too(source: Source, tiny: Effort) -> None:
    line = next(iter(overhead(source, tiny)))
    assert all(value.value > 0 for value in line.values)
