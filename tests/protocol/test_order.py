"""What a fetch is asked for reaches every rank as it was asked."""

from __future__ import annotations

from kvweave.core.portion import Portion
from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.order import Order
from tests.protocol.examples import ADDRESS, TABLES, TARGETS, reference


def test_an_order_is_posted_as_it_is() -> None:
    order = Order(ADDRESS, reference(), TARGETS, 4, 9, Portion(6, others=True))
    post = FetchEntry(1, ADDRESS, order.reference).post(order, salt=3)
    assert (post.source_tables, post.target_tables, post.start_token, post.num_tokens) == (TABLES, TARGETS, 4, 10)
    assert (post.fence, post.portion, post.salt) == (9, Portion(6, others=True), 3)


def test_by_default_everything_moves_at_once() -> None:
    post = FetchEntry(1, ADDRESS, reference()).post(Order(ADDRESS, reference(), TARGETS), salt=0)
    assert (post.start_token, post.fence, post.portion) == (0, None, None)
