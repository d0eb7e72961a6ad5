"""A prompt that is offered while it is prefilled, as the prefill engine's author sees it.

::

    transfer = engine.begin_transfer(transfer_id, request_id)      the id comes with the request
    transfer.offer_chunk(256, blocks)                              a step was processed: so much is there
    transfer.offer_chunk(512, blocks)
    transfer.give_up_blocks()                                      only if the request is preempted: it begins anew
    transfer.finish(700, blocks)                                   the offer of the whole, as ``PrefillEngine.offer``

Only what has been computed may be offered: the steps up to there are over, and nothing writes into these tokens again.
Blocks that are offered stay as they are until each of their offers was released, as for every offer; those that are
given up all the same void what was read from them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from kvweave.core.block_table import BlockTables
from kvweave.core.layout import EngineLayout
from kvweave.core.portion import keeps_all_tokens
from kvweave.errors import KVWeaveError, LocalProtocolError
from kvweave.protocol.messages import LEAST_TRANSFER_LETTERS, MOST_TRANSFER_LETTERS
from kvweave.protocol.reference import OfferReference
from kvweave.runtime.prefill_coordinator import Abandon, BeginTransfer, PrefillCommand, Released, Retract
from kvweave.runtime.tables import checked_tables

OnRelease = Callable[[Released], None]


@dataclass(frozen=True, slots=True)
class Making:
    """One offer to be made. ``transfer_id`` is that of the transfer which it is a part of, or ``final`` in."""

    request_id: str
    num_tokens: int
    tables: dict[str, tuple[int, ...]]
    on_release: OnRelease | None = None
    lease_seconds: float | None = None
    traceparent: str | None = None
    transfer_id: str | None = None
    final: bool = True


class ProgressiveTransfer:
    """One prompt's transfer; made by ``PrefillEngine.begin_transfer``. Its calls never wait; one thread makes them."""

    def __init__(
        self,
        begin: BeginTransfer,
        request_id: str,
        layout: EngineLayout,
        make: Callable[[Making], OfferReference | None],
        submit: Callable[[PrefillCommand], None],
        forget: Callable[[str], None],
    ) -> None:
        self._transfer_id = begin.transfer_id
        self._request_id = request_id
        self._layout = layout
        self._make = make
        self._submit = submit
        self._forget = forget
        self._over = False
        self._submit(begin)

    def offer_chunk(
        self, num_tokens: int, blocks: BlockTables, on_release: OnRelease | None = None
    ) -> OfferReference | None:
        """Offers the first ``num_tokens`` tokens, which have been computed by now, of all that keeps all tokens.

        None, and no offer, where nothing does. Raises what ``PrefillEngine.offer`` raises.
        """
        self._require_open()
        kept = kept_groups(self._layout)
        if not kept or num_tokens < 1:
            return None
        tables = checked_tables("source", self._layout, blocks)
        tables = {group: table if group in kept else () for group, table in tables.items()}
        return self._make(
            Making(self._request_id, num_tokens, tables, on_release, transfer_id=self._transfer_id, final=False)
        )

    def give_up_blocks(self) -> None:
        """The request is preempted: its blocks are another's from now on, and nothing that was offered holds.

        Earlier offers are withdrawn; each is released as always, when nobody reads it.
        """
        self._require_open()
        self._submit(Retract(self._transfer_id))

    def finish(
        self,
        num_tokens: int,
        blocks: BlockTables,
        on_release: OnRelease | None = None,
        lease_seconds: float | None = None,
        traceparent: str | None = None,
    ) -> OfferReference | None:
        """The final offer, of everything: see ``PrefillEngine.offer``. Where it cannot be made the transfer ends."""
        self._require_open()
        self._over = True

        def end(released: Released) -> None:
            self._forget(self._transfer_id)
            if on_release is not None:
                on_release(released)

        try:
            tables = checked_tables("source", self._layout, blocks)
            return self._make(
                Making(self._request_id, num_tokens, tables, end, lease_seconds, traceparent, self._transfer_id)
            )
        except KVWeaveError:
            self._end()
            raise

    def abandon(self) -> None:
        """The request ends without a final offer; whoever follows is told. After the end it changes nothing."""
        if not self._over:
            self._over = True
            self._end()

    def _end(self) -> None:
        self._forget(self._transfer_id)
        self._submit(Abandon(self._transfer_id))

    def _require_open(self) -> None:
        if self._over:
            raise LocalProtocolError(f"request {self._request_id}: its transfer is over; begin another one")


def new_transfer_id() -> str:
    """An id that nobody guesses."""
    return secrets.token_urlsafe(24)


def checked_transfer_id(transfer_id: object) -> str:
    """A transfer id that a message can carry and nobody guesses; raises ``LocalProtocolError`` otherwise."""
    if not isinstance(transfer_id, str) or not LEAST_TRANSFER_LETTERS <= len(transfer_id) <= MOST_TRANSFER_LETTERS:
        raise LocalProtocolError(
            f"transfer id: it must be a text of {LEAST_TRANSFER_LETTERS} to {MOST_TRANSFER_LETTERS} letters that "
            "nobody guesses; make it by new_transfer_id"
        )
    return transfer_id


def kept_groups(layout: EngineLayout) -> frozenset[str]:
    """The groups with an array that keeps all tokens, which can move before the prompt's end."""
    return frozenset(shard.group for rank in layout.ranks for shard in rank.shards if keeps_all_tokens(shard.array))
