"""``kvweave plan``: who reads what from whom, as a table, a picture or a document."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvweave.cli.command import Command
from kvweave.cli.options import (
    KEYS_HELP,
    AsDocument,
    Decode,
    Model,
    Prefill,
    describe_engine,
    parse_pair,
    parse_rank,
    parse_tokens,
)
from kvweave.cli.output import add_row, answers, counted, format_bytes, format_seconds, new_table, write_document
from kvweave.cli.picture import draw_plan
from kvweave.core.cost import RequestCost, TransferRates, estimate_request
from kvweave.core.explain import PlanRow, PlanTotals, describe_ranks, plan_rows, plan_totals
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan, plan_transfer
from kvweave.core.plan_document import plan_document
from kvweave.errors import ConfigurationError

_SHOWN_TARGETS = 16


def plan(
    model: Model,
    prefill: Prefill,
    decode: Decode,
    target: Annotated[str | None, typer.Option(metavar="RANK", help="Only this decode rank, such as tp=1.")] = None,
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Also print what a request of this many tokens costs.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the plan into this SVG file.")] = None,
    as_document: AsDocument = False,
) -> None:
    """Show who reads what from whom between two engines."""
    if svg is not None and svg.suffix.lower() != ".svg":
        raise ConfigurationError(f"--svg: {str(svg)!r} does not end in .svg; only SVG can be drawn, a browser opens it")
    num_tokens = parse_tokens(tokens)
    layouts = parse_pair(prefill, decode, model, model).layouts(num_tokens or 0)
    made = plan_transfer(*layouts, target=parse_rank(target) if target is not None else None)
    costs = _costs(made, num_tokens) if num_tokens is not None else {}
    if svg is not None:
        _write(svg, draw_plan(made))
    if as_document:
        write_document(plan_document(made) | ({"cost": _cost_document(num_tokens, costs)} if costs else {}))
        return
    _show(answers(), made, costs, num_tokens)


def _costs(made: TransferPlan, tokens: int) -> dict[str, RequestCost]:
    return {name: estimate_request(made, tokens, scattered=name == "scattered") for name in ("in order", "scattered")}


def _cost_document(tokens: int | None, costs: dict[str, RequestCost]) -> dict[str, object]:
    rates = TransferRates()
    return {
        "tokens": tokens,
        "seconds_per_row": rates.seconds_per_row,
        "bytes_per_second": rates.bytes_per_second,
        "blocks": {
            name.replace(" ", "_"): {"bytes": cost.nbytes, "rows": cost.rows, "seconds": cost.seconds}
            for name, cost in costs.items()
        },
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--svg: {str(path)!r} cannot be written ({error.strerror}); name another file"
        ) from None


def _show(console: Console, made: TransferPlan, costs: dict[str, RequestCost], tokens: int | None) -> None:
    console.print(
        f"[bold]{escape(made.decode.model.name)}[/bold]   prefill {describe_engine(made.prefill)}   ->   "
        f"decode {describe_engine(made.decode)}"
    )
    console.print(_totals_text(made, plan_totals(made)))
    console.print(_table(made))
    hidden = len(made.reads) - _SHOWN_TARGETS
    if hidden > 0:
        console.print(f"... and {hidden} more decode ranks: --target tp=N shows one, --json all of them.")
    for name, cost in costs.items():
        console.print(
            f"A request of {tokens:,} tokens, blocks {name}: {format_bytes(cost.nbytes)} in {cost.rows:,} rows, "
            f"about {format_seconds(cost.seconds)}"
        )


def _totals_text(made: TransferPlan, totals: PlanTotals) -> str:
    amounts = [_span(*totals.bytes_per_token) + " per token"] if totals.bytes_per_token[1] else []
    amounts += [_span(*totals.bytes_per_request) + " of state per request"] if totals.bytes_per_request[1] else []
    engines = made.prefill.parallel.dp, made.decode.parallel.dp
    copies = "" if engines == (1, 1) else f" ({engines[0]} x {engines[1]} engines)"
    return (
        f"Each decode rank reads {' and '.join(amounts)}. A request reads {totals.sources} of {totals.prefill_ranks} "
        f"prefill ranks, over {counted(totals.readers, 'pair')} of ranks; handshakes: {totals.handshakes}{copies}."
    )


def _span(least: float, most: float) -> str:
    return format_bytes(most) if least == most else f"{format_bytes(least)} to {format_bytes(most)}"


def _table(made: TransferPlan) -> Table:
    table = new_table()
    for title in ("decode", "layers", "part", "box", "from (or)", "tokens"):
        table.add_column(title, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for target, rows in islice(groupby(plan_rows(made), key=lambda row: row.target), _SHOWN_TARGETS):
        for cells in _cells(target, rows):
            add_row(table, *cells)
        table.add_section()
    return table


def _cells(target: RankCoordinates, rows: Iterator[PlanRow]) -> Iterator[tuple[str, ...]]:
    for number, row in enumerate(rows):
        others = f" ({describe_ranks(row.replicas)})" if row.replicas else ""
        state = row.bytes_per_request
        amount = format_bytes(state) if state else f"{format_bytes(row.bytes_per_token)}/token"
        yield (
            "" if number else str(target), row.layers, f"{row.module} {', '.join(row.parts)}", row.box,
            f"{row.source}{others}", row.tokens, amount,
        )  # fmt: skip


PLAN = Command(
    "plan",
    plan,
    (
        "kvweave plan --model llama-3.1-8b --prefill tp=4,block=16,layout=HND --decode tp=2,block=128,layout=NHD",
        "kvweave plan --model deepseek-v3 --prefill tp=16 --decode tp=4,dp=8 --target tp=1 --tokens 8000",
        "kvweave plan --model qwen3-next-80b-a3b --prefill tp=2,pp=2 --decode tp=4 --svg plan.svg",
        "kvweave plan --model smollm2-135m --prefill tp=2,head=0-2/2-3 --decode tp=3 --json",
    ),
    KEYS_HELP,
)
