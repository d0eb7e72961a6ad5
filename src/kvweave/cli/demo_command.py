"""``kvweave demo``: the main job on this machine. A real model prefills in one process and decodes in another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from kvweave.cli.command import Command
from kvweave.cli.engine_text import parse_engine
from kvweave.cli.failure import ANSWER_IS_NO
from kvweave.cli.options import ENGINE_HELP, KEYS_HELP, AsDocument
from kvweave.cli.output import answers, format_bytes, format_seconds, notices, write_document
from kvweave.errors import ConfigurationError

if TYPE_CHECKING:
    from kvweave.engines.hf.demo import Contact, Demonstration, Stage
    from kvweave.engines.hf.engine import EngineShape
    from kvweave.engines.hf.sweep import SweepResult

DEMO_SCHEMA = "kvweave.demo/1"
SWEEP_SCHEMA = "kvweave.sweep/1"
_MOST_TOKENS = 4096


def demo(
    context: typer.Context,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="MODEL", help="smollm2, tiny:FAMILY, or a folder of a model.")
    ] = "smollm2",
    prefill: Annotated[
        str, typer.Option("--prefill", "-p", metavar="ENGINE", help=f"The prefill engine: {ENGINE_HELP}.")
    ] = "tp=3,block=16,layout=HND",
    decode: Annotated[
        str, typer.Option("--decode", "-d", metavar="ENGINE", help=f"The decode engine: {ENGINE_HELP}.")
    ] = "tp=1,block=64,layout=NHD",
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="The question; a default one without it.")] = None,
    tokens: Annotated[str, typer.Option(metavar="COUNT", help="How many tokens to answer at most.")] = "64",
    chunks: Annotated[
        str, typer.Option(metavar="COUNT", help="Prefill in so many chunks, and move each while the next is computed.")
    ] = "1",
    sweep: Annotated[bool, typer.Option("--sweep", help="Every tiny family in several pairs of shapes.")] = False,
    family: Annotated[
        list[str] | None, typer.Option(metavar="FAMILY", help="With --sweep: only this family; may be repeated.")
    ] = None,
    *,
    as_document: AsDocument = False,
) -> None:
    """Prefill a prompt in one process, decode it in another of different shape, over NIXL.

    The answer's tokens are compared with those of the same model in one engine: exit code 1 if they differ.
    """
    _refuse_idle_options(context, ("model", "prefill", "decode", "prompt", "tokens") if sweep else ("family",))
    _require_parts()
    if sweep:
        _sweep(family or [], _count("--chunks", chunks), as_document=as_document)
        return
    shapes, most_tokens = (_shape("--prefill", prefill), _shape("--decode", decode)), _count("--tokens", tokens)
    with _stage(model) as stage:
        shown = stage.run(model, *shapes, prompt, most_tokens, _count("--chunks", chunks))
    if as_document:
        write_document(_document(shown))
    else:
        _show(shown, prefill, decode)
    raise typer.Exit(0 if shown.ok else ANSWER_IS_NO)


def _refuse_idle_options(context: typer.Context, names: Iterable[str]) -> None:
    """An option that would change nothing is refused, not ignored."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            remedy = "add --sweep" if name == "family" else "leave it out, or leave out --sweep"
            raise ConfigurationError(
                f"--{name}: it changes nothing {'without' if name == 'family' else 'with'} --sweep, which runs tiny "
                f"families in pairs of shapes of its own; {remedy}"
            )


def _require_parts() -> None:
    """Names what is to be installed where the base install is all there is."""
    missing = [module for module in ("torch", "transformers", "nixl", "zmq") if find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"demo: not installed: {', '.join(missing)}; pip install 'kvweave[nixl,hf]', or use make demo"
        )


def _shape(option: str, text: str) -> EngineShape:
    from kvweave.engines.hf.engine import EngineShape

    try:
        engine = parse_engine(text)
        if engine.model_options:
            raise ConfigurationError(
                f"{next(iter(engine.model_options))}: it says how another engine runs its model; the embedded engine "
                "runs the model as it is, leave it out"
            )
        if engine.states_num_blocks:
            raise ConfigurationError("blocks: the demo makes as many as the prompt needs; leave it out")
        return EngineShape(engine.parallel, engine.cache)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_TOKENS):
        raise ConfigurationError(f"{option}: {text!r} is not a whole number from 1 to {_MOST_TOKENS}")
    return int(text)


@contextmanager
def _stage(first: str, *, steps_in_log: bool = True) -> Iterator[Stage]:
    """Two engine processes. A terminal sees what they are at in one line that changes, a log one line per step."""
    from kvweave.engines.hf.demo import Stage

    console, start = notices(), f"starting two processes for {first}"
    if console.is_terminal:
        with console.status(start) as status, Stage(status.update) as stage:
            yield stage
        return
    console.print(start, markup=False, soft_wrap=True)
    with Stage(partial(console.print, markup=False, soft_wrap=True) if steps_in_log else _ignore) as stage:
        yield stage


def _ignore(_: str) -> None:
    """For a sweep, whose results are its progress."""


def _printable(text: str) -> str:
    """The text without control characters, which would steer the terminal; tiny models answer in random bytes."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{MIDDLE DOT}" for letter in text)


def _show(shown: Demonstration, prefill: str, decode: str) -> None:
    console = answers()
    answer = escape(_printable(shown.answer.strip()) or "(no text)")
    console.print(Panel(answer, title=f"{escape(shown.model)} answers", expand=False))
    console.print(f"prefill {prefill}   ->   decode {decode}", markup=False)
    if shown.contacts:
        console.print(_mapping(shown.contacts))
        console.print(
            f"moved {format_bytes(shown.nbytes)} of {shown.prompt_tokens - 1} prompt tokens "
            f"in {shown.rows:,} pieces over NIXL{_early(shown)}"
        )
    else:
        console.print("nothing was moved: the decode engine computes a prompt of one token itself")
    console.print(
        f"prefill {format_seconds(shown.prefill_seconds)}, {_transfer(shown)}"
        f"decode {format_seconds(shown.decode_seconds)}"
    )
    if not shown.ok:
        console.print(_fault(shown), style="bold red")
    else:
        console.print(f"all {len(shown.tokens)} tokens equal those of one engine", style="bold green")


def _mapping(contacts: Iterable[Contact]) -> Table:
    table = Table(
        "decode rank", "cache group", "reads from prefill ranks", box=None, header_style="bold", pad_edge=False
    )
    for contact in contacts:
        table.add_row(contact.target, contact.group, ", ".join(contact.sources))
    return table


def _transfer(shown: Demonstration) -> str:
    """The stages that take time; reads begin with their claim, which has none of its own."""
    names = {"peer": "handshake", "read": "read", "grant": "grant"}
    seconds = shown.transfer_seconds
    return "".join(f"{name} {format_seconds(seconds[stage])}, " for stage, name in names.items() if stage in seconds)


def _early(shown: Demonstration) -> str:
    return f", {format_bytes(shown.early_bytes)} of it while they were prefilled" if shown.early_bytes else ""


def _fault(shown: Demonstration) -> str:
    """What is wrong with a run that is not ok."""
    at = shown.difference
    if at is None:
        return f"WRONG: {shown.blocks_left} blocks were not freed"
    return (
        f"WRONG: token {at} is {shown.tokens[at : at + 1]}, one engine gives {shown.expected[at : at + 1]} "
        f"({len(shown.tokens)} and {len(shown.expected)} tokens in all)"
    )


def _document(shown: Demonstration) -> dict[str, Any]:
    return {
        "schema": DEMO_SCHEMA,
        "ok": shown.ok,
        "model": shown.model,
        "prompt_tokens": shown.prompt_tokens,
        "answer": shown.answer,
        "tokens": list(shown.tokens),
        "expected_tokens": list(shown.expected),
        "first_difference": shown.difference,
        "mapping": [{"target": c.target, "group": c.group, "sources": list(c.sources)} for c in shown.contacts],
        "bytes": shown.nbytes,
        "early_bytes": shown.early_bytes,
        "descriptors": shown.rows,
        "seconds": {
            "prefill": shown.prefill_seconds,
            "transfer": dict(shown.transfer_seconds),
            "decode": shown.decode_seconds,
        },
        "blocks_not_freed": shown.blocks_left,
    }


def _sweep(families: list[str], chunks: int, *, as_document: bool) -> None:
    from kvweave.engines.hf.families import FAMILIES
    from kvweave.engines.hf.sweep import PAIRS, sweep

    unknown = [family for family in families if family not in FAMILIES]
    if unknown:
        raise ConfigurationError(f"--family: {unknown[0]!r} is not known; use one of {', '.join(FAMILIES)}")
    chosen = families or list(FAMILIES)
    results: list[SweepResult] = []
    progress = notices()
    with _stage("the sweep", steps_in_log=False) as stage:
        for result in sweep(stage, chosen, chunks=chunks):
            results.append(result)
            progress.print(
                f"{len(results)} of {len(chosen) * len(PAIRS)}: {_verdict(result)}  {result.family}, {result.pair}",
                soft_wrap=True,
            )
    ok = all(result.ok for result in results)
    if as_document:
        write_document({"schema": SWEEP_SCHEMA, "ok": ok, "results": [_sweep_document(result) for result in results]})
    else:
        _show_sweep(results)
    raise typer.Exit(0 if ok else ANSWER_IS_NO)


def _verdict(result: SweepResult) -> str:
    if result.impossible:
        return "no such engine"
    if result.demonstration is None:
        return "FAILED"
    return "equal" if result.demonstration.ok else "WRONG"


def _why(result: SweepResult) -> str:
    shown = result.demonstration
    if shown is not None and not shown.ok:
        return _fault(shown)
    return result.impossible or result.failed


def _show_sweep(results: list[SweepResult]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("family", "shapes", "tokens"):
        table.add_column(title, no_wrap=True)
    for title in ("moved", "pieces", "transfer"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for result in results:
        shown = result.demonstration
        numbers = (
            (format_bytes(shown.nbytes), f"{shown.rows:,}", format_seconds(shown.transfer_seconds.get("read", 0.0)))
            if shown
            else ("",) * 3
        )
        table.add_row(result.family, result.pair, _verdict(result), *numbers, _why(result))
    answers().print(table)
    counts = [_verdict(result) for result in results]
    answers().print(", ".join(f"{counts.count(name)} {name}" for name in dict.fromkeys(counts)))


def _sweep_document(result: SweepResult) -> dict[str, Any]:
    shown = result.demonstration
    return {
        "family": result.family,
        "shapes": result.pair,
        "result": _verdict(result),
        "why": _why(result),
        "demo": _document(shown) if shown else None,
    }


DEMO = Command(
    "demo",
    demo,
    (
        "kvweave demo --prompt 'Why is the sky blue?'",
        "kvweave demo --model tiny:granite-4 --prefill tp=4 --decode tp=2,block=64",
        "kvweave demo --sweep",
    ),
    KEYS_HELP,
)
