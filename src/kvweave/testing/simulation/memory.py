"""Block pools so small that what is freed is used again at once, and content that tells whose it is.

A block has a slot per token. The content of a slot is a number: which run of a prompt it was computed by, and at which
token. A state has the first slot of its block, and its content says after which token it is. A freed block is
overwritten in the same moment, as by a request that does not concern us, so stale bytes never look right by luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.scenario import TOKENS_PER_BLOCK

_MOST_TOKENS = 4096


def content(serial: int, token: int) -> int:
    """What the run with that serial number computes for a token."""
    return 2 * serial * _MOST_TOKENS + token


def state_content(serial: int, num_tokens: int) -> int:
    """The state of that run after so many tokens."""
    return (2 * serial + 1) * _MOST_TOKENS + num_tokens


def slot_of(blocks: Sequence[int], token: int) -> int:
    """Where a token lies, by the blocks of its table."""
    return blocks[token // TOKENS_PER_BLOCK] * TOKENS_PER_BLOCK + token % TOKENS_PER_BLOCK


def num_blocks(num_tokens: int) -> int:
    """How many blocks hold so many tokens."""
    return -(-num_tokens // TOKENS_PER_BLOCK)


class BlockPool:
    """``size`` blocks of one engine; the one that was freed last is given out first. ``labels`` are the slots'."""

    def __init__(self, name: str, size: int, ledger: Ledger) -> None:
        self.name = name
        self.size = size
        self._ledger = ledger
        self._free = list(range(size))
        self._owner: list[int | None] = [None] * size
        self.labels = [-1] * (size * TOKENS_PER_BLOCK)
        self._overwritten = -1

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """How many blocks somebody holds."""
        return len(self._owner) - len(self._free)

    def owner(self, block: int) -> int | None:
        """Who holds a block."""
        return self._owner[block]

    def take(self, count: int, owner: int) -> tuple[int, ...]:
        """Gives blocks to an owner."""
        blocks = tuple(self._free.pop() for _ in range(count))
        for block in blocks:
            self._owner[block] = owner
        return blocks

    def write(self, blocks: Sequence[int], serial: int, tokens: Iterable[int]) -> None:
        """A run computes some tokens of its table."""
        for token in tokens:
            self.labels[slot_of(blocks, token)] = content(serial, token)

    def write_state(self, block: int, serial: int, num_tokens: int) -> None:
        """A run writes its state over."""
        self.labels[block * TOKENS_PER_BLOCK] = state_content(serial, num_tokens)

    def give_back(self, blocks: Sequence[int], owner: int) -> None:
        """Frees blocks; each must be the owner's, so none is freed twice."""
        for block in reversed(blocks):
            self._ledger.require(self._owner[block] == owner, f"{self.name}: block {block} is freed, but not held")
            self._overwritten -= 1
            self._owner[block] = None
            slot = block * TOKENS_PER_BLOCK
            self.labels[slot : slot + TOKENS_PER_BLOCK] = [self._overwritten] * TOKENS_PER_BLOCK
            self._free.append(block)
