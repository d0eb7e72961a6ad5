"""Which part of a request moves, where it does not move at once: what a chunk of its prompt has, or what is left then.

While a prompt is prefilled in chunks, only arrays that keep all tokens can move: an entry of theirs is final as soon as
it is there. Windows move on and states are written over, so both move once, at the end::

    tokens          0        256       512       768
    keeps all       |-chunk 1-|-chunk 2-|-chunk 3-|-last-|
    window, state                                 |-last-|
"""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.array import CacheArray, FullReach
from kvweave.core.whole import require_whole


@dataclass(frozen=True, slots=True)
class Portion:
    """``kept_start`` is the first token that moves of arrays that keep all tokens, whatever the request's start token.

    ``others`` says whether windows, chunks and states move too; they begin at the request's start token as always.
    """

    kept_start: int
    others: bool

    def __post_init__(self) -> None:
        require_whole("portion", 0, kept_start=self.kept_start)

    def moves(self, array: CacheArray) -> bool:
        """Whether anything of the array moves."""
        return self.others or keeps_all_tokens(array)


def keeps_all_tokens(array: CacheArray) -> bool:
    """Whether every entry of the array stays as it is from its token on, as long as the request lives."""
    return array.tokens is not None and isinstance(array.tokens.reach, FullReach)
