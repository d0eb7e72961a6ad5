"""``kvweave check``: do two descriptions fit? Every mismatch with its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from kvweave.cli.command import Command
from kvweave.cli.failure import ANSWER_IS_NO, mismatch_document
from kvweave.cli.options import ENGINE_HELP, KEYS_HELP, AsDocument, describe_engine, parse_pair
from kvweave.cli.output import add_row, answers, new_table, write_document
from kvweave.core.layout import EngineLayout
from kvweave.core.plan import plan_transfer
from kvweave.errors import ConfigurationError, IncompatibleLayouts, Mismatch

CHECK_SCHEMA = "kvweave.check/1"

_DESCRIBING = ("--prefill", "--decode", "--model", "--prefill-model", "--decode-model")
_CLOSING = ("--keys", "--allowed-keys")


def check(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST:PORT HOST:PORT]",
            show_default=False,
            help="Two running engines, prefill first; NAME@HOST:PORT says whose key it has.",
        ),
    ] = None,
    prefill: Annotated[
        str | None, typer.Option("--prefill", "-p", metavar="ENGINE", help=f"The prefill engine: {ENGINE_HELP}.")
    ] = None,
    decode: Annotated[
        str | None, typer.Option("--decode", "-d", metavar="ENGINE", help=f"The decode engine: {ENGINE_HELP}.")
    ] = None,
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
    keys: Annotated[str | None, typer.Option(metavar="FILE", help="Our .key_secret file, for running engines.")] = None,
    allowed_keys: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The .key files of the running engines.")
    ] = None,
    as_document: AsDocument = False,
) -> None:
    """Check whether two engines can work together: every mismatch, and what to do about it."""
    if addresses:
        described = (prefill, decode, model, prefill_model, decode_model)
        _refuse_idle(_DESCRIBING, described, "running engines describe themselves")
        layouts = _running(addresses, keys, allowed_keys)
    else:
        _refuse_idle(_CLOSING, (keys, allowed_keys), "it is for running engines, which are named by their addresses")
        layouts = _described(prefill, decode, model, prefill_model, decode_model)
    problems = _problems(*layouts)
    if as_document:
        found = [mismatch_document(problem) for problem in problems]
        write_document({"schema": CHECK_SCHEMA, "compatible": not problems, "mismatches": found})
    else:
        _show(layouts, problems)
    raise typer.Exit(ANSWER_IS_NO if problems else 0)


def _refuse_idle(options: Sequence[str], values: Sequence[str | None], why: str) -> None:
    """An option that would change nothing is refused, not ignored."""
    stated = [option for option, value in zip(options, values, strict=True) if value is not None]
    if stated:
        raise ConfigurationError(f"{stated[0]}: {why}; leave it out")


def _described(
    prefill: str | None, decode: str | None, model: str | None, prefill_model: str | None, decode_model: str | None
) -> tuple[EngineLayout, EngineLayout]:
    """The layouts of two engines that are described, not running."""
    if prefill is None or decode is None:
        raise ConfigurationError(
            f"{'--prefill' if prefill is None else '--decode'}: not stated; describe both engines, or name the "
            "addresses of two running ones"
        )
    models = _stated(prefill_model, model, decode_model), _stated(decode_model, model, prefill_model)
    return parse_pair(prefill, decode, *models).layouts(0)


def _running(addresses: list[str], keys: str | None, allowed: str | None) -> tuple[EngineLayout, EngineLayout]:
    """The layouts of two running engines, asked for as an observer, who gets no agent data."""
    try:
        from kvweave.runtime import CurveKeys, observe
        from kvweave.runtime.addresses import PeerList
    except ImportError as error:
        raise ConfigurationError(f"check: {error}; install what it needs: pip install 'kvweave[nixl]'") from error
    if len(addresses) != 2:
        raise ConfigurationError(f"check: {len(addresses)} addresses; name a prefill engine and a decode engine")
    if (keys is None) != (allowed is None):
        raise ConfigurationError("keys: --keys FILE and --allowed-keys FOLDER belong together; state both or neither")
    own = None if keys is None or allowed is None else CurveKeys.load(keys, allowed)
    peers = PeerList.parse(addresses)
    if len(set(peers.addresses)) != len(addresses):
        raise ConfigurationError(f"check: {' '.join(addresses)} are not two addresses; write HOST:PORT HOST:PORT")
    source, target = (observe(address, peers, own).layout for address in peers.addresses)
    return source, target


def _stated(own: str | None, both: str | None, other: str | None) -> str:
    """The side's own model, the one of both, or the other side's."""
    stated = own or both or other
    if stated is None:
        raise ConfigurationError(
            "--model: none stated; state --model for both sides, or --prefill-model and --decode-model"
        )
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
        "kvweave check 10.0.0.7:5600 10.0.0.8:5600 --keys path/to/engine.key_secret --allowed-keys path/to/engines",
    ),
    KEYS_HELP,
)
