"""``kvweave bench``: transfer speed and cost on this machine, beside its own limits and beside NixlConnector's way."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvweave.cli.bench_report import show_lines
from kvweave.cli.command import Command
from kvweave.cli.failure import ANSWER_IS_NO
from kvweave.cli.options import AsDocument
from kvweave.cli.output import notices, write_document
from kvweave.errors import ConfigurationError

if TYPE_CHECKING:
    from kvweave.benchmarks.report import Line

MEASUREMENTS = ("contiguous", "fragmented", "overhead", "handshake", "loop", "first")
PICTURES = (".png", ".svg")


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: half the time, less certain.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"One of {', '.join(MEASUREMENTS)}; may be repeated. All without it."),
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Draw the result, as PNG or SVG by the name's end; may be repeated."),
    ] = None,
    as_document: AsDocument = False,
) -> None:
    """Measure transfers between two processes of this machine over NIXL.

    Every figure is a ratio inside one run: to a raw NIXL read, to memcpy, to NixlConnector's way. Medians of several
    rounds in which the contenders take turns. Exit code 1 if a ratio breaks its limit.
    """
    chosen = check_chosen(only or [])
    pictures = check_pictures(plot or [])
    _require_parts()
    lines = _measure(chosen, quick=quick)
    finish(lines, quick=quick, pictures=pictures, as_document=as_document)


def check_chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The measurements to run; raises ``ConfigurationError`` for one that does not exist."""
    unknown = [name for name in names if name not in MEASUREMENTS]
    if unknown:
        raise ConfigurationError(f"--only: {unknown[0]!r} is no measurement; use one of {', '.join(MEASUREMENTS)}")
    return tuple(names) or MEASUREMENTS


def check_pictures(files: Sequence[Path]) -> Sequence[Path]:
    """The files to draw; raises ``ConfigurationError`` before anything is measured when one could not be drawn."""
    for file in files:
        if file.suffix.lower() not in PICTURES:
            raise ConfigurationError(f"--plot: {str(file)!r} ends neither in .png nor in .svg; name the file so")
        if not file.absolute().parent.is_dir():
            raise ConfigurationError(f"--plot: the folder of {str(file)!r} does not exist; make it first")
    if files and find_spec("matplotlib") is None:
        raise ConfigurationError("--plot: not installed: matplotlib; pip install 'kvweave[plot]'")
    return files


def finish(lines: Sequence[Line], *, quick: bool, pictures: Sequence[Path], as_document: bool) -> None:
    """Draws and prints the result, and ends the command with its exit code."""
    from kvweave.benchmarks.report import all_hold, document

    for picture in pictures:
        from kvweave.cli.bench_chart import draw

        draw(lines, picture)
    if as_document:
        write_document(document(lines, quick=quick))
    else:
        show_lines(lines)
    raise typer.Exit(0 if all_hold(lines) else ANSWER_IS_NO)


def _measure(chosen: tuple[str, ...], *, quick: bool) -> list[Line]:
    from kvweave.benchmarks.effort import Effort
    from kvweave.benchmarks.suite import run

    progress = notices()
    effort = Effort.quick() if quick else Effort()
    return list(run(effort, chosen, begun=lambda name: progress.print(f"[dim]measuring: {name}[/dim]")))


def _require_parts() -> None:
    missing = [module for module in ("nixl", "zmq") if find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"bench: not installed: {', '.join(missing)}; pip install 'kvweave[nixl]'")


BENCH = Command(
    "bench",
    bench,
    (
        "kvweave bench",
        "kvweave bench --quick --plot speed.svg --plot speed.png",
        "kvweave bench --only fragmented --only contiguous --json",
    ),
)
