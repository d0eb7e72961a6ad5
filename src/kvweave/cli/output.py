"""Where the command line writes: answers to stdout, progress and errors to stderr, documents as JSON.

A reader that goes away (``| head``) ends the command without a word.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

ERROR_SCHEMA = "kvweave.error/1"
_FILE_WIDTH = 160


class _PipeConsole(Console):
    """A console that leaves a broken pipe to the command group; rich would answer with an exit code of its own."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def answers() -> Console:
    """Where answers go; wide where no terminal sets the width, so that nothing is cut."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_WIDTH
    return _PipeConsole(highlight=False, width=wide)


def notices() -> Console:
    """Where progress and errors go."""
    return _PipeConsole(stderr=True, highlight=False)


def write_line(document: Any) -> None:
    """A document for programs, on stdout, in one line."""
    sys.stdout.write(json.dumps(document) + "\n")


def write_document(document: Any) -> None:
    """A document for programs, on stdout, line by line: a single large write would hide that the reader went away."""
    sys.stdout.writelines((json.dumps(document, indent=2) + "\n").splitlines(keepends=True))


def new_table() -> Table:
    """A table without lines, for columns to be added."""
    return Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))


def add_row(table: Table, *cells: str) -> None:
    """A row of plain text: nothing in a name is taken for markup."""
    table.add_row(*(Text(cell) for cell in cells))


def format_bytes(count: float) -> str:
    """Bytes for people.

    >>> format_bytes(512), format_bytes(131072), format_bytes(20_238_336), format_bytes(0.5)
    ('512 B', '128 KiB', '19.3 MiB', '0.5 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.1f}".removesuffix(".0") + f" {unit}"


def counted(number: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "pair"), counted(1200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """A duration for people.

    >>> format_seconds(0.00042), format_seconds(0.0421), format_seconds(12.3)
    ('0.42 ms', '42.1 ms', '12.3 s')
    """
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
