"""``kvweave serve``: vLLM prefill and decode servers of chosen shapes and vllm-router in front, on this machine."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from kvweave.cli.command import Command
from kvweave.cli.engine_text import EngineDescription
from kvweave.cli.failure import ANSWER_IS_NO
from kvweave.cli.options import ENGINE_HELP, KEYS_HELP, AsDocument, Pair, parse_option
from kvweave.cli.serve_report import Report, new_report
from kvweave.core.plan import plan_transfer
from kvweave.errors import ConfigurationError
from kvweave.models import load
from kvweave.serving import (
    Deployment,
    Died,
    Fleet,
    Installation,
    Interruption,
    Machine,
    Order,
    Outcome,
    ServerShape,
    Stopped,
    deploy,
    server_shape,
)
from kvweave.serving.checkpoint import find_configuration
from kvweave.serving.ports import require_free
from kvweave.serving.probe import Question, Reply, ask, failed_loads, questions, served_name

SIGNALLED = 128
_REPEATED = "May be repeated, one server each."


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or the name of a Hugging Face repository.")],
    prefill: Annotated[
        list[str],
        typer.Option("--prefill", "-p", metavar="ENGINE", help=f"A prefill server: {ENGINE_HELP}. {_REPEATED}"),
    ],
    decode: Annotated[
        list[str], typer.Option("--decode", "-d", metavar="ENGINE", help=f"A decode server, likewise. {_REPEATED}")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- VLLM_ARGUMENTS", help="Behind --: for every vLLM server.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65000, help="Where to listen; servers take the ports above.")] = 8000,
    logs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where logs go; a temporary folder else.")] = None,
    progressive: Annotated[
        bool, typer.Option("--progressive", help="Move caches while they are computed, by a proxy of kvweave's own.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
    as_document: AsDocument = False,
) -> None:
    """Serve a model with prefill and decode apart: vLLM servers of chosen shapes, vllm-router in front.

    Everything listens on loopback, runs until Ctrl-C, and is ended whatever happens to this command.
    """
    engines = (_engines("--prefill", prefill), _engines("--decode", decode))
    shapes = (_shapes("--prefill", engines[0]), _shapes("--decode", engines[1]))
    order = Order(model, *shapes, _behind_dashes(arguments or []), port, progressive)
    unchecked = _check_pairs(model, *engines)
    installation = Installation.look()
    if not dry_run:
        installation.require(router=not progressive)
        require_free(port)
    deployments = deploy(order, Machine.look(os.environ), installation, os.environ)
    report = new_report(as_document=as_document)
    report.notice(unchecked)
    if dry_run:
        report.commands(deployments)
        return
    raise typer.Exit(_run(order, deployments, _folder(logs), report))


@dataclass(frozen=True, slots=True)
class _Described:
    text: str
    engine: EngineDescription


def _engines(option: str, texts: list[str]) -> list[_Described]:
    return [_Described(text, parse_option(option, text)) for text in texts]


def _shapes(option: str, engines: list[_Described]) -> tuple[ServerShape, ...]:
    try:
        return tuple(
            server_shape(
                described.text, described.engine.parallel, described.engine.cache, described.engine.model_options,
                described.engine.stated,
            )
            for described in engines
        )  # fmt: skip
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _behind_dashes(arguments: list[str]) -> tuple[str, ...]:
    if arguments and not arguments[0].startswith("-"):
        raise ConfigurationError(
            f"{arguments[0]!r}: not understood; one MODEL is served, and vLLM's own arguments stand behind --"
        )
    return tuple(arguments)


def _check_pairs(model: str, prefill: list[_Described], decode: list[_Described]) -> str:
    """Raises ``IncompatibleLayouts`` when a pair cannot work; says so when that can't be told beforehand."""
    configuration = find_configuration(model)
    if configuration is None:
        return f"{model}: not on this machine yet, so whether the pair fits shows when the servers meet"
    try:
        load(str(configuration))
    except ConfigurationError as error:
        return f"{error}; so whether the pair fits shows when the servers meet"
    for source, target in product(prefill, decode):
        plan_transfer(*Pair(source.engine, target.engine, (str(configuration),) * 2).layouts(0))
    return ""


def _folder(logs: Path | None) -> Path:
    if logs is None:
        return Path(tempfile.mkdtemp(prefix="kvweave-serve-"))
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--logs: {str(logs)!r} cannot be made ({error.strerror}); name a folder") from None
    return logs


def _run(order: Order, deployments: tuple[Deployment, ...], logs: Path, report: Report) -> int:
    """Runs the fleet until it ends; gives the exit code."""
    with Interruption() as interruption, Fleet(deployments, logs, interruption) as fleet:
        with report.progress(deployments, fleet):
            outcome = fleet.bring_up(report.started, report.healthy, report.refresh)
            answer: list[_FirstAnswer] = []
            if outcome is None:
                report.trying()
                outcome = fleet.meanwhile(lambda: answer.append(_first_answer(order.model, deployments)))
        if outcome is None and answer and answer[0].reply.is_good:
            report.ready(deployments, logs, answer[0].question, answer[0].failed)
            outcome = fleet.watch()
        return _end(outcome, answer, fleet, report)


@dataclass(frozen=True, slots=True)
class _FirstAnswer:
    """What came back through the router, and how many loads had failed by then."""

    question: Question
    reply: Reply
    failed: float


def _first_answer(model: str, deployments: tuple[Deployment, ...]) -> _FirstAnswer:
    """Asks through the router as a user would: a chat, or a plain completion where there is no chat template."""
    *servers, router = deployments
    question, plain = questions(served_name(servers[0].url, model))
    reply = ask(router.url, question)
    if not reply.is_good:
        question, reply = plain, ask(router.url, plain)
    return _FirstAnswer(question, reply, sum(failed_loads(server.url) for server in servers if server.role == "decode"))


def _end(outcome: Outcome | None, answer: list[_FirstAnswer], fleet: Fleet, report: Report) -> int:
    """Shows why it ended, ends all, and gives the exit code."""
    match outcome:
        case Stopped(signal):
            report.ending()
            fleet.end()
            report.ended()
            return SIGNALLED + signal
        case Died(deployment, code):
            report.died(deployment, code, fleet.log(deployment))
        case None:
            report.no_answer(answer[0].reply if answer else Reply(0, "the question failed"))
    return ANSWER_IS_NO


SERVE = Command(
    "serve",
    serve,
    (
        "kvweave serve Qwen/Qwen3-0.6B --prefill tp=2 --decode tp=1",
        "kvweave serve path/to/model --prefill tp=2,block=64 --prefill tp=1 --decode tp=4,block=128 --port 9000",
        "kvweave serve Qwen/Qwen3-0.6B --prefill tp=2 --decode tp=1 --progressive",
        "kvweave serve Qwen/Qwen3-0.6B --prefill tp=2 --decode tp=1 --dry-run -- --max-model-len 8192",
    ),
    KEYS_HELP,
)
