"""The few SVG elements that the pictures are made of, each as a line of text."""

from __future__ import annotations

from html import escape

INK, FAINT, EDGE = "#1f2933", "#616e7c", "#cbd2d9"
Edges = tuple[float, float]
"""Upper and lower edge of something."""


def opening(width: float, height: float, title: str) -> list[str]:
    """The beginning of a picture: its size, its title for those who cannot see it, a white ground."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="Helvetica, Arial, sans-serif">',
        f"<title>{escape(title)}</title>",
        box(0, 0, width, height, fill="#ffffff"),
    ]


def box(
    left: float, top: float, width: float, height: float, fill: str, stroke: str = "none", opacity: float = 1
) -> str:
    """A rectangle with slightly round corners."""
    place = f'x="{left:.0f}" y="{top:.1f}" width="{width:.0f}" height="{height:.1f}" rx="2"'
    return f'<rect {place} fill="{fill}" fill-opacity="{opacity}" stroke="{stroke}"/>'


def words(
    left: float,
    base: float,
    text: str,
    size: int = 12,
    weight: str = "normal",
    colour: str = INK,
    anchor: str = "start",
) -> str:
    """One line of text; ``left`` is its right end for the anchor "end"."""
    place = f'x="{left:.0f}" y="{base:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(text)}</text>'


def band(left: float, right: float, source: Edges, target: Edges, colour: str) -> str:
    """A filled band from one pair of edges to another."""
    path = (
        f"M{left:.0f},{source[0]:.1f} {_curve(source[0], target[0], left, right)} "
        f"L{right:.0f},{target[1]:.1f} {_curve(target[1], source[1], right, left)} Z"
    )
    look = f'fill="{colour}" fill-opacity="0.32" stroke="{colour}" stroke-opacity="0.7" stroke-width="0.7"'
    return f'<path d="{path}" {look}/>'


def dashes(left: float, right: float, start: float, stop: float, colour: str, opacity: float = 1) -> str:
    """A dashed line from (left, start) to (right, stop)."""
    path = f"M{left:.0f},{start:.1f} {_curve(start, stop, left, right)}"
    look = f'fill="none" stroke="{colour}" stroke-opacity="{opacity}" stroke-dasharray="5 4"'
    return f'<path d="{path}" {look}/>'


def _curve(start: float, stop: float, left: float, right: float) -> str:
    """A level-ended curve from (left, start), where the pen is, to (right, stop)."""
    bend = (right - left) * 0.45
    return f"C{left + bend:.0f},{start:.1f} {right - bend:.0f},{stop:.1f} {right:.0f},{stop:.1f}"
