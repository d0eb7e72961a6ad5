"""``kvweave verify``: proves a pair byte by byte with labelled memory; for one model or for every preset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kvweave.cli.command import Command
from kvweave.cli.failure import ANSWER_IS_NO, WRONG_QUESTION
from kvweave.cli.options import KEYS_HELP, AsDocument, Decode, Model, Prefill, parse_pair, parse_tokens
from kvweave.cli.output import add_row, answers, format_bytes, new_table, notices, write_document
from kvweave.core.plan import plan_transfer
from kvweave.core.verify import Report
from kvweave.errors import IncompatibleLayouts, LayoutError
from kvweave.models import presets

VERIFY_SCHEMA = "kvweave.verify/1"
_SAMPLE_ROOM = 1 << 15
"""Tokens that any sample has room for beside its blocks: the longest known window or chunk is 8,192."""


@dataclass(frozen=True, slots=True)
class _Proof:
    """What came out for one model: a report, or why there is none (``refused``: no engine could have these sizes)."""

    model: str
    seconds: float
    report: Report | None = None
    refused: str = ""

    @property
    def result(self) -> str:
        if self.report is None:
            return "refused"
        return "proved" if self.report.ok else "WRONG"


def verify(
    model: Model,
    prefill: Prefill,
    decode: Decode,
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Length of the sample request, if not the default: a few blocks, and past every window."
        ),
    ] = None,
    as_document: AsDocument = False,
) -> None:
    """Prove a pair of engines byte by byte, with labelled memory.

    Sample requests, all ranks and all layers: every wanted byte arrives exactly once, from its own place, and
    nothing else is touched. The model [bold]all[/bold] stands for every preset.
    """
    num_tokens = parse_tokens(tokens)
    names = presets() if model == "all" else (model,)
    proofs = []
    with _progress() as progress:
        for number, name in enumerate(names):
            title = name if len(names) == 1 else f"{name} ({number + 1} of {len(names)})"
            proofs.append(_prove(progress, title, name, prefill, decode, num_tokens, may_refuse=len(names) > 1))
    if as_document:
        write_document(
            {"schema": VERIFY_SCHEMA, "ok": _exit_code(proofs) == 0, "proofs": [_document(p) for p in proofs]}
        )
    else:
        _show(proofs)
    raise typer.Exit(_exit_code(proofs))


def _progress() -> Progress:
    """A bar for a terminal; nothing for a log, where it would be an empty line."""
    console = notices()
    return Progress(
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn("ranks"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _prove(
    progress: Progress, title: str, model: str, prefill: str, decode: str, num_tokens: int | None, *, may_refuse: bool
) -> _Proof:
    started = time.perf_counter()
    task = progress.add_task(title, total=None)
    pair = parse_pair(prefill, decode, model, model)
    try:
        plan = plan_transfer(*pair.layouts(num_tokens or _SAMPLE_ROOM + 4 * pair.span_tokens))
        report = plan.verify(num_tokens, lambda done, total: progress.update(task, completed=done, total=total))
    except (LayoutError, IncompatibleLayouts) as error:
        if not may_refuse:
            raise
        return _Proof(model, time.perf_counter() - started, refused=str(error))
    finally:
        progress.remove_task(task)
    return _Proof(model, time.perf_counter() - started, report)


def _exit_code(proofs: Sequence[_Proof]) -> int:
    """1 when anything is wrong, 2 when no model could have these sizes."""
    if any(proof.result == "WRONG" for proof in proofs):
        return ANSWER_IS_NO
    return 0 if any(proof.report for proof in proofs) else WRONG_QUESTION


def _document(proof: _Proof) -> dict[str, object]:
    document: dict[str, object] = {"model": proof.model, "result": proof.result.lower()}
    report = proof.report
    if report is None:
        return {**document, "problems": [proof.refused]}
    return {
        **document, "tokens": report.tokens, "ranks": report.ranks, "requests": report.requests, "rows": report.rows,
        "bytes": report.nbytes, "elements": report.elements, "problems": list(report.problems),
    }  # fmt: skip


def _show(proofs: Sequence[_Proof]) -> None:
    if len(proofs) == 1:
        answers().print(str(proofs[0].report), markup=False)
        return
    table = new_table()
    table.add_column("model", no_wrap=True)
    table.add_column("result", no_wrap=True)
    for title in ("ranks", "rows", "bytes", "elements", "seconds"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for proof in proofs:
        add_row(table, *_cells(proof))
    answers().print(table)
    answers().print(_summary(proofs))


def _cells(proof: _Proof) -> tuple[str, ...]:
    report = proof.report
    if report is None:
        return (proof.model, proof.result, "", "", "", "", f"{proof.seconds:.1f}", proof.refused)
    return (
        proof.model, proof.result, str(report.ranks), f"{report.rows:,}", format_bytes(report.nbytes),
        f"{report.elements:,}", f"{proof.seconds:.1f}", "; ".join(report.problems[:3]),
    )  # fmt: skip


def _summary(proofs: Sequence[_Proof]) -> str:
    results = [proof.result for proof in proofs]
    counts = {name: results.count(name) for name in ("proved", "WRONG", "refused")}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


VERIFY = Command(
    "verify",
    verify,
    (
        "kvweave verify --model deepseek-v3 --prefill tp=16 --decode tp=4,dp=8",
        "kvweave verify --model gpt-oss-20b --prefill tp=2,block=32 --decode tp=4,block=128 --tokens 600",
        "kvweave verify --model all --prefill tp=4 --decode tp=2",
    ),
    KEYS_HELP,
)
