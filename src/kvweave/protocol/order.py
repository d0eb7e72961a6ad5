"""What one fetch is asked to bring: which offer, which of its tokens, and into which blocks of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvweave.core.portion import Portion
from kvweave.protocol.reference import OfferReference


@dataclass(frozen=True, slots=True)
class Order:
    """What a fetch wants: an offer at an address, and where its tokens from ``start_token`` on go (ids per group).

    ``fence`` and ``portion``: see ``PostReads``.
    """

    address: str
    reference: OfferReference
    tables: Mapping[str, tuple[int, ...]]
    start_token: int = 0
    fence: int | None = None
    portion: Portion | None = None
