"""The blocks of one request in one engine: a table for layers that keep all tokens, and in some models more.

A window holds the last blocks alone: block n of the request is in the same place as block n - 3, as if the window had
let go of it and got it back at once. A state has one block, which is written over at every step::

    tokens      0..3   4..7   8..11  12..15  16..18
    keeps all   a      b      c      d       e
    window      -      -      -      w0      w1      (w0 had tokens 0..3 before, w1 4..7)
    state                                    s
"""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.block_table import NULL_BLOCK
from kvweave.testing.simulation.memory import BlockPool, num_blocks, slot_of
from kvweave.testing.simulation.scenario import TOKENS_PER_BLOCK, Shape

KEPT, WINDOW, STATE = "full", "window", "state"
"""The groups of layers."""
WINDOW_TOKENS = 5
_RING = 3

Tables = dict[str, tuple[int, ...]]


def first_visible(num_tokens: int) -> int:
    """The first token that the window still shows to the token behind so many."""
    return max(0, num_tokens - WINDOW_TOKENS + 1)


def blocks_needed(shape: Shape, num_tokens: int) -> int:
    """How many blocks of an engine a request takes."""
    kept = num_blocks(num_tokens)
    return kept + min(kept, _RING) + 1 if shape.mixed else kept


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one request, held by ``owner``; ``window`` and ``state`` are empty where no layer has such."""

    owner: int
    kept: tuple[int, ...]
    window: tuple[int, ...] = ()
    state: tuple[int, ...] = ()

    @staticmethod
    def take(pool: BlockPool, shape: Shape, num_tokens: int, owner: int) -> Blocks:
        """Takes them from a pool."""
        kept = num_blocks(num_tokens)
        if not shape.mixed:
            return Blocks(owner, pool.take(kept, owner))
        return Blocks(owner, pool.take(kept, owner), pool.take(min(kept, _RING), owner), pool.take(1, owner))

    def give_back(self, pool: BlockPool) -> None:
        """Frees them."""
        pool.give_back((*self.kept, *self.window, *self.state), self.owner)

    def compute(self, pool: BlockPool, first: int, stop: int) -> None:
        """A run computes its tokens from ``first`` to before ``stop``."""
        pool.write(self.kept, self.owner, range(first, stop))
        if self.state:
            pool.write(self._turns(num_blocks(stop)), self.owner, range(first, stop))
            pool.write_state(self.state[0], self.owner, stop)

    def tables(self, num_tokens: int) -> Tables:
        """Everything that there is after so many tokens."""
        tables = self.kept_tables(num_tokens)
        if self.state:
            first = first_visible(num_tokens) // TOKENS_PER_BLOCK
            last = self._turns(num_blocks(num_tokens))[first:]
            tables |= {WINDOW: (NULL_BLOCK,) * first + last, STATE: self.state}
        return tables

    def kept_tables(self, num_tokens: int) -> Tables:
        """What of it stays as it is, with empty tables for the rest (see ``runtime/transfer.py``)."""
        tables: Tables = {KEPT: self.kept[: num_blocks(num_tokens)]}
        return tables | {WINDOW: (), STATE: ()} if self.state else tables

    def slots(self, first: int, stop: int) -> set[int]:
        """Where some tokens of the layers that keep all of them lie."""
        return {slot_of(self.kept, token) for token in range(first, stop)}

    def _turns(self, count: int) -> tuple[int, ...]:
        """The window's block for each of the first blocks of the request."""
        return tuple(self.window[number % _RING] for number in range(count))
