"""Prompts that a simulated prefill engine offers while it computes them, and what may become of them meanwhile.

A request that is preempted loses its blocks at once, whoever reads them; it begins anew when there are others. What is
over holds no chunk any more: of a transfer that has ended, or whose blocks are lost, no offer may be left that nobody
has claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvweave.protocol.messages import OfferKey
from kvweave.protocol.reference import OfferReference
from kvweave.testing.simulation.holding import Handover, Holding
from kvweave.testing.simulation.scenario import Progress, RequestPlan

RETRACTED_SECONDS = 0.005
"""How long after a request has lost its blocks its offers are withdrawn: the engine only leaves word."""

if TYPE_CHECKING:
    from kvweave.testing.simulation.prefill import PrefillProcess
    from kvweave.testing.simulation.world import World


@dataclass(eq=False, slots=True)
class Run:
    """A prompt that waits or is computed. ``acts`` counts what the engine did for it, lost blocks included."""

    plan: RequestPlan
    acts: int = 0
    begun: bool = False
    steps: int = 0
    chunks: list[OfferKey] = field(default_factory=list)


class Runs:
    """All progressive transfers of one prefill process, from their first step to the end of their last offer."""

    def __init__(self, world: World, process: PrefillProcess) -> None:
        self.living: set[str] = set()
        self._ended: set[OfferKey] = set()
        self._finals: dict[OfferKey, tuple[Run, Progress]] = {}
        self._world = world
        self._ledger = world.ledger
        self._process = process

    def begin(self, run: Run, progress: Progress, holding: Holding) -> None:
        """The first step, of a new prompt or of one that was preempted."""
        process = self._process
        if not run.begun and progress.transfer_id in self.living:
            self._ledger.count("transfer ids that another prompt has")
            process.unpin(holding)
            return
        if not run.begun:
            run.begun = True
            self.living.add(progress.transfer_id)
            self._ledger.count("transfers begun")
            process.side.begin_transfer(process.clock, progress.transfer_id, progress.transfer_id)
        run.steps = 0
        process.soon(progress.step_seconds, partial(self._act, run, progress, holding))

    def released(self, key: OfferKey) -> None:
        """An offer has ended; with a final one its transfer has."""
        if key in self._finals:
            run, progress = self._finals.pop(key)
            self._end(run, progress)

    def check(self) -> None:
        """Of what is over nothing is offered any more, unless somebody reads it."""
        process = self._process
        for key in list(self._ended):
            if key not in process.offers:
                self._ended.discard(key)
            elif process.side.offers.claimant(key) is None:
                self._ledger.fail(f"{process.name}: {key} is of a transfer that is over, and nobody reads it")

    def _act(self, run: Run, progress: Progress, holding: Holding) -> None:
        act = run.acts
        run.acts += 1
        if act in progress.preempted:
            self._preempt(run, progress, holding)
        elif act == progress.given_up:
            self._give_up(run, progress, holding)
        else:
            self._compute(run, progress, holding)

    def _compute(self, run: Run, progress: Progress, holding: Holding) -> None:
        """One step, whose tokens are offered."""
        process = self._process
        first, stop = (0, *progress.steps)[run.steps : run.steps + 2]
        run.steps += 1
        holding.blocks.compute(process.pool, first, stop)
        if run.steps == len(progress.steps):
            self._finish(run, progress, holding, stop)
            return
        self._ledger.count("chunks offered")
        reference = process.make_offer(run.plan, holding, stop, holding.blocks.kept_tables(stop))
        run.chunks.append(reference.offer)
        self._offer(run, progress, reference, final=False)
        process.soon(progress.step_seconds, partial(self._act, run, progress, holding))

    def _finish(self, run: Run, progress: Progress, holding: Holding, num_tokens: int) -> None:
        process = self._process
        reference = process.make_offer(run.plan, holding, num_tokens, holding.blocks.tables(num_tokens))
        process.unpin(holding)
        self._finals[reference.offer] = run, progress
        self._world.note_final(process, reference.offer, holding.serial, progress.transfer_id)
        self._offer(run, progress, reference, final=True)
        if progress.handed_over:
            self._world.hand_over(Handover(run.plan, reference, holding.serial))
        process.offered(run.plan, reference)

    def _offer(self, run: Run, progress: Progress, reference: OfferReference, final: bool) -> None:
        side, lease = self._process.side, run.plan.lease_seconds
        effects = side.offer_part(self._process.clock, progress.transfer_id, reference, final, lease)
        self._process.perform(effects)

    def _preempt(self, run: Run, progress: Progress, holding: Holding) -> None:
        """The blocks are another's at once, whatever is read of them; the offers are withdrawn a little later."""
        process = self._process
        self._ledger.count("preempted")
        self._ledger.note(f"{process.name} preempts", f"request {run.plan.number}", f"#{holding.serial}")
        holding.void = True
        holding.blocks.give_back(process.pool)
        process.soon(RETRACTED_SECONDS, partial(self._retract, run, progress, holding))

    def _retract(self, run: Run, progress: Progress, holding: Holding) -> None:
        process = self._process
        process.perform(process.side.retract_parts(process.clock, progress.transfer_id))
        process.unpin(holding)
        self._ended.update(run.chunks)
        run.chunks.clear()
        process.again(run)

    def _give_up(self, run: Run, progress: Progress, holding: Holding) -> None:
        process = self._process
        self._ledger.count("given up while prefilled")
        self._ledger.note(f"{process.name} gives up", f"request {run.plan.number}")
        process.perform(process.side.abandon_transfer(process.clock, progress.transfer_id))
        process.unpin(holding)
        self._end(run, progress)

    def _end(self, run: Run, progress: Progress) -> None:
        self.living.discard(progress.transfer_id)
        self._ended.update(run.chunks)
