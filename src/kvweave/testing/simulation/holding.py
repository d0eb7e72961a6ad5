"""What is truly behind an offer: the blocks of one run of a prompt, and how long who reads them may count on them."""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.protocol.reference import OfferReference
from kvweave.testing.simulation.blocks import Blocks
from kvweave.testing.simulation.scenario import RequestPlan


@dataclass(slots=True)
class Holding:
    """The blocks of one run of a prompt, freed when no offer and no computing pins them any more.

    ``void``: they were freed all the same, because the request was preempted.
    """

    blocks: Blocks
    pins: int = 0
    void: bool = False

    @property
    def serial(self) -> int:
        """The number of the run."""
        return self.blocks.owner


@dataclass(slots=True)
class Offered:
    """What is truly behind an offer, and until when its reader may count on it (own clock)."""

    holding: Holding
    promised_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Handover:
    """A reference on its way to a decode engine, and the content that it stands for; None where it stands for none."""

    plan: RequestPlan
    reference: OfferReference
    serial: int | None
