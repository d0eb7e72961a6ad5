"""Token positions as progressions: what a read or a rank covers of a request, in the tokens of the whole request.

``first, run, step`` stand for the positions ``first + n*step + [0, run)``. All tokens are ``0, 1, 1``; a share of dcp 4
with interleave 16 is ``first, 16, 64``. Where an entry stands for r tokens, a share's numbers are multiples of r.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.interval import Interval
from kvweave.core.read import Read
from kvweave.core.tokens import TokenShare, shared_runs


@dataclass(frozen=True, slots=True)
class TokenRun:
    """The token positions ``first + n*step + [0, run)`` for n = 0, 1, 2, ..."""

    first: int = 0
    run: int = 1
    step: int = 1

    @property
    def share(self) -> float:
        """Which part of all positions these are."""
        return self.run / self.step


def share_run(share: TokenShare, tokens_per_entry: int = 1) -> TokenRun:
    """The positions that one share holds.

    >>> share_run(TokenShare(count=4, index=1, interleave=16))
    TokenRun(first=16, run=16, step=64)
    """
    if share.count == 1:
        return TokenRun()
    turn = share.interleave * tokens_per_entry
    return TokenRun(share.index * turn, turn, share.count * turn)


def read_runs(read: Read) -> tuple[TokenRun, ...]:
    """The positions that a read covers; none for a state. Several where one progression does not describe them."""
    source, target = read.sources[0].tokens, read.target.tokens
    if source is None or target is None or read.array.tokens is None:
        return ()
    runs, period = shared_runs(source, target)
    if period == 1:
        return (TokenRun(),)
    return tuple(_run_of(run, period, read.array.tokens.tokens_per_entry) for run in runs)


def _run_of(run: Interval, period: int, tokens_per_entry: int) -> TokenRun:
    return TokenRun(run.start * tokens_per_entry, len(run) * tokens_per_entry, period * tokens_per_entry)
