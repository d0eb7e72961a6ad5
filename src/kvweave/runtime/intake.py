"""Messages between a socket and those who handle them: fair between senders, bounded for each.

Every round handles at most ``MOST_HANDLED`` messages of each sender, in the order in which they came, whatever the
others send. Who sends faster than that for long fills his own queue, and what does not fit is dropped: his requests
fail, nobody else's::

    sender A  ||||||||||||||||x x x     64 a round, the rest waits, then is dropped
    sender B  |                         handled in the next round, as always
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST_HANDLED = 64
MOST_WAITING_MESSAGES = 4096
MOST_WAITING_BYTES = 8 << 20

Item = TypeVar("Item")


@dataclass(slots=True)
class _Queue(Generic[Item]):
    items: deque[tuple[Item, int]] = field(default_factory=deque)
    nbytes: int = 0


class Intake(Generic[Item]):
    """Queues by sender. ``dropped`` counts what did not fit since the start."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Hashable, _Queue[Item]] = OrderedDict()
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, sender: Hashable, item: Item, nbytes: int) -> None:
        """Queues one message of a sender, or drops it when its queue is full."""
        queue = self._queues.setdefault(sender, _Queue())
        if len(queue.items) >= MOST_WAITING_MESSAGES or queue.nbytes + nbytes > MOST_WAITING_BYTES:
            self.dropped += 1
            return
        queue.items.append((item, nbytes))
        queue.nbytes += nbytes

    def take(self) -> Iterator[Item]:
        """This round's messages: one sender after the other, at most ``MOST_HANDLED`` of each."""
        for sender, queue in list(self._queues.items()):
            for _ in range(min(MOST_HANDLED, len(queue.items))):
                item, nbytes = queue.items.popleft()
                queue.nbytes -= nbytes
                yield item
            if not queue.items:
                del self._queues[sender]
