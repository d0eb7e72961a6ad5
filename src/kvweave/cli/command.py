"""What a command is: a name, a function, and examples. The application is a table of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer


@dataclass(frozen=True, slots=True)
class Command:
    """One command. ``examples`` are lines as a user would type them; ``notes`` stand below them."""

    name: str
    function: Callable[..., Any]
    examples: tuple[str, ...]
    notes: str = ""

    def add_to(self, app: typer.Typer) -> None:
        """Makes it a command of ``app``."""
        app.command(self.name, epilog=self._epilog())(self.function)

    def _epilog(self) -> str:
        """Blank lines keep typer from joining the lines."""
        lines = ["[bold]Examples[/bold]", *(f"  {example}" for example in self.examples)]
        return "\n\n".join([*lines, self.notes] if self.notes else lines)
