"""``kvweave check``: do two descriptions fit? Every mismatch with its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kvweave.cli.command import Command
from kvweave.cli.failure import ANSWER_IS_NO, mismatch_document
from kvweave.cli.options import KEYS_HELP, AsDocument, Decode, Prefill, describe_engine, parse_pair
from kvweave.cli.output import add_row, answers, new_table, write_document
from kvweave.core.layout import EngineLayout
from kvweave.core.plan import plan_transfer
from kvweave.errors import ConfigurationError, IncompatibleLayouts, Mismatch

CHECK_SCHEMA = "kvweave.check/1"


def check(
    prefill: Prefill,
    decode: Decode,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="MODEL", help="A preset, a config.json, or a folder with one."),
    ] = None,
    prefill_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What the prefill engine serves, if not --model.")
    ] = None,
    decode_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="What the decode engine serves, if not --model.")
    ] = None,
    as_document: AsDocument = False,
) -> None:
    """Check whether two engines can work together: every mismatch, and what to do about it."""
    models = (
        _stated("--prefill-model", prefill_model, model, decode_model),
        _stated("--decode-model", decode_model, model, prefill_model),
    )
    layouts = parse_pair(prefill, decode, *models).layouts(0)
    problems = _problems(*layouts)
    if as_document:
        found = [mismatch_document(problem) for problem in problems]
        write_document({"schema": CHECK_SCHEMA, "compatible": not problems, "mismatches": found})
    else:
        _show(layouts, problems)
    raise typer.Exit(ANSWER_IS_NO if problems else 0)


def _stated(option: str, own: str | None, both: str | None, other: str | None) -> str:
    """The side's own model, the one of both, or the other side's."""
    stated = own or both or other
    if stated is None:
        raise ConfigurationError(f"--model: none stated; state --model for both sides, or {option} for each")
    return stated


def _problems(prefill: EngineLayout, decode: EngineLayout) -> Sequence[Mismatch]:
    """The layouts' mismatches, and what planning finds that no prefill rank holds."""
    try:
        plan_transfer(prefill, decode)
    except IncompatibleLayouts as error:
        return error.problems
    return ()


def _show(layouts: tuple[EngineLayout, EngineLayout], problems: Sequence[Mismatch]) -> None:
    console = answers()
    sides = [f"{layout.model.name} ({describe_engine(layout)})" for layout in layouts]
    if not problems:
        console.print(f"compatible: prefill {sides[0]} and decode {sides[1]}", markup=False)
        return
    console.print(f"NOT compatible: prefill {sides[0]} and decode {sides[1]}", markup=False)
    table = new_table()
    for title in ("field", "prefill has", "decode has", "remedy"):
        table.add_column(title, overflow="fold")
    for problem in problems:
        add_row(table, problem.field, problem.source, problem.target, problem.remedy)
    console.print(table)


CHECK = Command(
    "check",
    check,
    (
        "kvweave check --model llama-3.1-8b --prefill tp=4 --decode tp=2,block=128",
        "kvweave check --model gpt-oss-20b --prefill tp=4,dtype=bfloat16 --decode tp=2,dtype=fp8_e4m3",
        "kvweave check --prefill-model qwen3-0.6b --decode-model qwen3-32b --prefill tp=1 --decode tp=1",
        "kvweave check --model granite-4.0-h-tiny --prefill tp=2 --decode tp=4,speculative_tokens=2",
    ),
    KEYS_HELP,
)
