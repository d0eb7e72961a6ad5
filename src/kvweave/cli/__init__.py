"""The command line: typer commands and rich rendering over the library, no computing.

``COMMANDS`` is the whole list; a module that adds a command defines a ``Command`` and is named there.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kvweave.cli.bench_command import BENCH
from kvweave.cli.check_command import CHECK
from kvweave.cli.demo_command import DEMO
from kvweave.cli.failure import KVWeaveGroup
from kvweave.cli.keys_command import KEYS
from kvweave.cli.models_command import MODELS
from kvweave.cli.plan_command import PLAN
from kvweave.cli.serve_command import SERVE
from kvweave.cli.verify_command import VERIFY
from kvweave.version import __version__

COMMANDS = (DEMO, SERVE, PLAN, VERIFY, CHECK, BENCH, MODELS, KEYS)


def main() -> None:
    """The ``kvweave`` command. Exit codes: 0 it works, 1 the answer is no, 2 the question could not be understood."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvweave {__version__}")
        raise typer.Exit


def _open(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Move a request's KV cache between LLM engines of different shape: plan it, prove it, do it.

    Exit codes: 0 it works, 1 the answer is no, 2 the question could not be understood.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def build_app() -> typer.Typer:
    """The application with every command of ``COMMANDS``."""
    built = typer.Typer(
        name="kvweave",
        cls=KVWeaveGroup,
        rich_markup_mode="rich",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    built.callback(invoke_without_command=True)(_open)
    for command in COMMANDS:
        command.add_to(built)
    return built


app = build_app()
