"""``kvweave models``: the presets and what each caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from kvweave.cli.command import Command
from kvweave.cli.options import AsDocument
from kvweave.cli.output import add_row, answers, format_bytes, new_table, write_document
from kvweave.models import ModelDescription, describe, presets


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A preset, a config.json, or a folder with one.", show_default=False),
    ] = None,
    as_document: AsDocument = False,
) -> None:
    """List the presets and what each caches, or show one model in detail."""
    found = [describe(what) for what in ((name,) if name is not None else presets())]
    if as_document:
        write_document([asdict(model) for model in found])
    elif name is not None:
        _show_one(found[0])
    else:
        _show_all(found)


def _show_all(found: Sequence[ModelDescription]) -> None:
    table = _table("model", "family", "layers", "per token", "per request", "window", "groups")
    for model in found:
        add_row(table,
            model.name, model.family, str(model.layers), *_amounts(model.bytes_per_token, model.bytes_per_request),
            _amount(model.window_bytes), ", ".join(f"{group.name} x{group.layers}" for group in model.groups),
        )  # fmt: skip
    answers().print(table)


def _show_one(model: ModelDescription) -> None:
    console = answers()
    console.print(
        f"[bold]{escape(model.name)}[/bold]   {model.family} ({escape(model.architecture)}), {model.layers} layers"
    )
    table = _table("group", "layers", "per token", "per request", "window", "arrays of one layer")
    for group in model.groups:
        amounts = _amounts(group.bytes_per_token, group.bytes_per_request)
        add_row(table, group.name, str(group.layers), *amounts, _amount(group.window_bytes), "\n".join(group.arrays))
    table.add_section()
    total = _amounts(model.bytes_per_token, model.bytes_per_request)
    add_row(table, "all", str(sum(group.layers for group in model.groups)), *total, _amount(model.window_bytes), "")
    console.print(table)
    for note in _notes(model):
        console.print(note, markup=False)


def _notes(model: ModelDescription) -> list[str]:
    notes = [f"Values confirmed by {model.verified} independent source(s)."] if model.verified else []
    notes += ["The file states no dtype: bfloat16 is assumed."] if model.dtype_assumed else []
    return notes + ([model.note] if model.note else [])


def _amounts(per_token: float, per_request: int) -> tuple[str, str]:
    return _amount(per_token), _amount(per_request)


def _amount(count: float) -> str:
    return format_bytes(count) if count else "-"


def _table(*titles: str) -> Table:
    table = new_table()
    for title in titles:
        numeric = title in ("layers", "per token", "per request", "window")
        table.add_column(title, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    return table


MODELS = Command(
    "models",
    models,
    ("kvweave models", "kvweave models deepseek-v4-flash", "kvweave models path/to/config.json --json"),
    "Bytes are the whole model's, each array counted once: per token (windows while they grow), per request (states), "
    "and in full windows.",
)
