"""Which of several equal sources serves a request.

The target ranks that want the same bytes start evenly spread over the replicas (``ordinal * replicas // siblings``, the
rank that follows from the TP ratio), and each request moves all of them on by its salt. A salt that counts requests is
a rotation, so the replicas of a peer are read equally often. Large requests are served by several turns of it at once
(``stripes.py``), small ones by the turn that is loaded least (``spread.py``). What a source fails to serve is read
again from another one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING

from kvweave.errors import PlanError

if TYPE_CHECKING:
    from kvweave.core.parallel import RankCoordinates
    from kvweave.core.read import Read, ReadEnd
    from kvweave.core.stripes import Stripe

Salt = int | str
"""A number that counts requests, or any text. Text that ends in a number counts by it: ``request-7``, ``request-8``."""


def choose(read: Read, salt: Salt = 0) -> ReadEnd:
    """The source that serves ``read`` for a request of that salt."""
    count = len(read.sources)
    return read.sources[replica_position(read.ordinal, read.siblings, count, salt)]


def others(
    reads: Iterable[Read], served: Iterable[Stripe], failed: Container[RankCoordinates]
) -> dict[Stripe, tuple[Read, ...]] | None:
    """The reads that failed sources served in these stripes, by the stripe at a turn at which another source serves it.

    None when one of them has no other source.
    """
    reads = tuple(reads)
    found: dict[Stripe, list[Read]] = {}
    for stripe in served:
        for read in reads:
            if choose(read, stripe.turn).coordinates not in failed:
                continue
            turns = range(stripe.turn + 1, stripe.turn + len(read.sources))
            turn = next((turn for turn in turns if choose(read, turn).coordinates not in failed), None)
            if turn is None:
                return None
            found.setdefault(stripe.at(turn), []).append(read)
    return {stripe: tuple(members) for stripe, members in found.items()}


def replica_position(ordinal: int, siblings: int, count: int, salt: Salt = 0) -> int:
    """Which of ``count`` replicas serves the target number ``ordinal`` of ``siblings``.

    >>> [replica_position(rank, 4, 8) for rank in range(4)], replica_position(3, 4, 8, salt=1)
    ([0, 2, 4, 6], 7)
    """
    return (ordinal * count // siblings + salt_number(salt)) % count


def salt_number(salt: Salt) -> int:
    """The number of a salt; text is hashed, and the number that it ends in is added.

    Requests named by a counter are so a rotation, as counted ones are; a hash alone reads some replica a tenth more
    than the mean over a thousand requests.

    >>> salt_number(7), salt_number("request-8") - salt_number("request-7")
    (7, 1)
    """
    if isinstance(salt, str):
        count = salt[len(salt.rstrip("0123456789")) :][-18:]
        name = salt.removesuffix(count)
        hashed = blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
        return int.from_bytes(hashed, "big") + int(count or 0)
    try:
        return abs(index(salt))
    except TypeError:
        raise PlanError(
            f"salt: {salt!r} is neither a whole number nor text; count the requests, or name them"
        ) from None
