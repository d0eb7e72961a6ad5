"""A plan as an SVG picture: prefill ranks left, decode ranks right, a coloured band for what is read.

Each rank is a card with one line per lane (arrays that are split alike); the coloured block at its inner edge is what
the rank holds of it. A band runs from the part of the block that is read to the part that is filled. Dashed lines come
from ranks with the same bytes, which serve other requests. Beyond ``MOST_CARDS`` ranks a side, the rest is one card.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvweave.cli import svg
from kvweave.cli.options import describe_engine
from kvweave.cli.output import counted
from kvweave.core.explain import plan_totals
from kvweave.core.lanes import Band, Card, Lane, LaneKey, Piece, PlanLanes, Span, plan_lanes
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan

MOST_CARDS = 16

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#666666")
_MARGIN, _CARD_WIDTH, _BETWEEN = 24, 250, 380
_WIDTH = 2 * _MARGIN + 2 * _CARD_WIDTH + _BETWEEN
_TITLE_HEIGHT, _LANE_HEIGHT, _GAP, _BLOCK = 24, 24, 12, 12
_HEADER, _LEGEND_LINE = 104, 22
_FROM, _TO = _MARGIN + _CARD_WIDTH, _MARGIN + _CARD_WIDTH + _BETWEEN
_LABEL_LETTERS = 34
_MANY_LINES = 24


@dataclass(frozen=True, slots=True)
class _Placed:
    """A card at its place. ``hidden`` is how many ranks it stands for, 0 for a rank of its own."""

    card: Card | None
    top: float
    height: float
    hidden: int = 0

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The card's pieces; none for a card that stands for several ranks."""
        return () if self.card is None else self.card.pieces

    def lane_top(self, lane: LaneKey) -> float:
        """The upper edge of a lane's line."""
        number = next((n for n, piece in enumerate(self.pieces) if piece.lane == lane), 0)
        return self.top + _TITLE_HEIGHT + number * _LANE_HEIGHT

    def edges(self, lane: LaneKey, span: Span) -> svg.Edges:
        """Upper and lower edge of a part of a lane's block; the middle of a card that stands for several ranks."""
        if self.card is None:
            middle = self.top + self.height / 2
            return middle - 1, middle + 1
        inside = span.within(0, _LANE_HEIGHT - 4)
        return self.lane_top(lane) + inside.start, self.lane_top(lane) + inside.stop


@dataclass(frozen=True, slots=True)
class _Column:
    """One side's cards, by rank; ranks that are not shown lead to the last card."""

    left: float
    placed: tuple[_Placed, ...]
    by_rank: Mapping[RankCoordinates, _Placed]

    def find(self, rank: RankCoordinates) -> _Placed:
        return self.by_rank.get(rank, self.placed[-1])

    def shows(self, rank: RankCoordinates) -> bool:
        return rank in self.by_rank


def draw_plan(plan: TransferPlan) -> str:
    """The picture of a plan, for a request of salt 0, as the text of an SVG file."""
    lanes = plan_lanes(plan)
    colours = {lane.key: _COLOURS[number % len(_COLOURS)] for number, lane in enumerate(lanes.lanes)}
    shown_targets = _shown(lanes.targets, ())
    shown_sources = _shown(lanes.sources, _serving(lanes.bands, shown_targets))
    heights = [_column_height(lanes.sources, shown_sources), _column_height(lanes.targets, shown_targets)]
    body = max(heights)
    left = _column(_MARGIN, lanes.sources, shown_sources, _HEADER + (body - heights[0]) / 2)
    right = _column(_WIDTH - _MARGIN - _CARD_WIDTH, lanes.targets, shown_targets, _HEADER + (body - heights[1]) / 2)
    height = _HEADER + body + _GAP + _LEGEND_LINE * (len(lanes.lanes) + 2) + _MARGIN
    return "\n".join(
        [
            *svg.opening(_WIDTH, height, f"{plan.decode.model.name}: {_engines(plan)}"),
            *_heading(plan),
            *_bands(lanes.bands, left, right, colours),
            *_cards(left, lanes, colours, block_left=left.left + _CARD_WIDTH - _BLOCK, text_left=left.left + 10),
            *_cards(right, lanes, colours, block_left=right.left, text_left=right.left + _BLOCK + 8),
            *_legend(lanes.lanes, colours, _HEADER + body + _GAP + 10),
            "</svg>",
            "",
        ]
    )


def _engines(plan: TransferPlan) -> str:
    return f"prefill {describe_engine(plan.prefill)} to decode {describe_engine(plan.decode)}"


def _serving(bands: Iterable[Band], targets: Sequence[Card]) -> tuple[RankCoordinates, ...]:
    shown = {card.rank for card in targets}
    return tuple(dict.fromkeys(band.source for band in bands if band.target in shown and not band.replica))


def _shown(cards: Sequence[Card], first: Sequence[RankCoordinates]) -> tuple[Card, ...]:
    """As many cards as fit, those of ``first`` before others, in the order of the ranks."""
    if len(cards) <= MOST_CARDS:
        return tuple(cards)
    wanted = dict.fromkeys([*first, *(card.rank for card in cards)])
    kept = set(list(wanted)[: MOST_CARDS - 1])
    return tuple(card for card in cards if card.rank in kept)


def _card_height(card: Card) -> float:
    return _TITLE_HEIGHT + _LANE_HEIGHT * len(card.pieces) + 4


def _column_height(cards: Sequence[Card], shown: Sequence[Card]) -> float:
    rest = _TITLE_HEIGHT + 8 + _GAP if len(shown) < len(cards) else 0
    return sum(_card_height(card) + _GAP for card in shown) + rest


def _column(left: float, cards: Sequence[Card], shown: Sequence[Card], top: float) -> _Column:
    placed = []
    for card in shown:
        placed.append(_Placed(card, top, _card_height(card)))
        top += _card_height(card) + _GAP
    by_rank = {card.rank: place for card, place in zip(shown, placed, strict=True)}
    if len(shown) < len(cards):
        placed.append(_Placed(None, top, _TITLE_HEIGHT + 8, len(cards) - len(shown)))
    return _Column(left, tuple(placed), by_rank)


def _heading(plan: TransferPlan) -> Iterator[str]:
    totals = plan_totals(plan)
    yield svg.words(_MARGIN, 36, plan.decode.model.name, size=19, weight="bold")
    yield svg.words(
        _MARGIN, 58,
        f"a request reads {totals.sources} of {totals.prefill_ranks} prefill ranks, in "
        f"{counted(totals.readers, 'pair')} of ranks",
        colour=svg.FAINT,
    )  # fmt: skip
    yield svg.words(_MARGIN, _HEADER - 14, f"prefill: {describe_engine(plan.prefill)}", weight="bold")
    yield svg.words(
        _WIDTH - _MARGIN, _HEADER - 14, f"decode: {describe_engine(plan.decode)}", weight="bold", anchor="end"
    )


def _bands(bands: Sequence[Band], left: _Column, right: _Column, colours: Mapping[LaneKey, str]) -> Iterator[str]:
    """Dashed lines first, so that what is read lies above; fainter where there are many."""
    replicas = [band for band in bands if band.replica and left.shows(band.source) and right.shows(band.target)]
    opacity = 0.5 if len(replicas) <= _MANY_LINES else 0.25
    for band in replicas:
        source, target = _ends(band, left, right)
        yield svg.dashes(_FROM, _TO, sum(source) / 2, sum(target) / 2, colours[band.lane], opacity)
    reads = [band for band in bands if not band.replica and (left.shows(band.source) or right.shows(band.target))]
    yield from dict.fromkeys(svg.band(_FROM, _TO, *_ends(band, left, right), colours[band.lane]) for band in reads)


def _ends(band: Band, left: _Column, right: _Column) -> tuple[svg.Edges, svg.Edges]:
    source, target = left.find(band.source), right.find(band.target)
    return source.edges(band.lane, band.source_span), target.edges(band.lane, band.target_span)


def _cards(
    column: _Column, lanes: PlanLanes, colours: Mapping[LaneKey, str], *, block_left: float, text_left: float
) -> Iterator[str]:
    names = {lane.key: ", ".join(lane.parts) for lane in lanes.lanes}
    several_stages = len({card.rank.pp for card in (*lanes.sources, *lanes.targets)}) > 1
    for placed in column.placed:
        yield svg.box(column.left, placed.top, _CARD_WIDTH, placed.height, "#f7f9fb", svg.EDGE)
        yield svg.words(text_left, placed.top + 17, _card_title(placed, several_stages), weight="bold")
        for piece in placed.pieces:
            top = placed.lane_top(piece.lane)
            yield svg.box(block_left, top, _BLOCK, _LANE_HEIGHT - 4, colours[piece.lane])
            yield svg.words(text_left, top + 14, _piece_label(names[piece.lane], piece), size=11, colour=svg.FAINT)


def _card_title(placed: _Placed, several_stages: bool) -> str:
    if placed.card is None:
        return f"and {placed.hidden} more ranks"
    if not several_stages or not placed.pieces:
        return str(placed.card.rank)
    layers = min(piece.layers.start for piece in placed.pieces), max(piece.layers.stop for piece in placed.pieces)
    return f"{placed.card.rank}, layers [{layers[0]}, {layers[1]})"


def _piece_label(names: str, piece: Piece) -> str:
    held = "all" if piece.units is None else f"{piece.units} of {piece.lane.units}"
    return f"{_shortened(names, max(8, _LABEL_LETTERS - len(held)))}: {held}"


def _shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1].rstrip(", ") + "…"


def _legend(lanes: Sequence[Lane], colours: Mapping[LaneKey, str], top: float) -> Iterator[str]:
    for number, lane in enumerate(lanes):
        at = top + number * _LEGEND_LINE
        yield svg.box(_MARGIN, at, 20, 12, colours[lane.key])
        yield svg.words(_MARGIN + 28, at + 10, _shortened(f"{', '.join(lane.parts)}: {_lane_rule(lane.key)}", 120))
    at = top + len(lanes) * _LEGEND_LINE
    yield svg.box(_MARGIN, at, 20, 12, svg.FAINT, svg.FAINT, opacity=0.32)
    yield svg.words(_MARGIN + 28, at + 10, "read for this request")
    at += _LEGEND_LINE
    yield svg.dashes(_MARGIN, _MARGIN + 20, at + 6, at + 6, svg.FAINT)
    yield svg.words(_MARGIN + 28, at + 10, "has the same bytes; serves other requests")


def _lane_rule(key: LaneKey) -> str:
    kind = "one state per request" if key.state else "every token"
    split = f"split in {key.units} parts" if key.units else "the same on every tensor rank"
    return f"{kind}, {split}" + (", tokens dealt out by dcp" if key.dealt else "")
