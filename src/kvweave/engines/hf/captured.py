"""What the bridge to transformers hands out and takes back: one request's cache as logical arrays.

The arrays are those of the model's specs, by (layer name, part), with elements in the coordinates of the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from kvweave.errors import LocalProtocolError

ArrayKey = tuple[str, str]
"""A layer's name and a part: which logical array."""


@dataclass(frozen=True, slots=True)
class CapturedArray:
    """One logical array of one request.

    With a token axis ``data`` is (entry, *axes) and row 0 is entry ``first_entry``; a state is (*axes) and
    ``first_entry`` is 0. The axes and their order are those of the layer's spec.
    """

    first_entry: int
    data: NDArray[Any]

    def rows(self, first: int, stop: int) -> NDArray[Any]:
        """Entries [first, stop) of an array with a token axis; ``LocalProtocolError`` where some are missing."""
        start, end = self.first_entry, self.first_entry + len(self.data)
        if first >= stop:
            return self.data[:0]
        if first < start or end < stop:
            raise LocalProtocolError(
                f"entries: [{first}, {stop}) are needed, [{start}, {end}) are there; deliver what is missing"
            )
        return self.data[first - start : stop - start]


@dataclass(frozen=True, slots=True)
class CapturedCache:
    """Everything that one request has cached after ``num_tokens`` tokens."""

    num_tokens: int
    arrays: Mapping[ArrayKey, CapturedArray]

    def array(self, layer: str, part: str) -> CapturedArray:
        """The array of that name; ``LocalProtocolError`` when the request came without it."""
        found = self.arrays.get((layer, part))
        if found is None:
            raise LocalProtocolError(f"array {layer} {part}: it is not among the request's arrays; deliver it too")
        return found
