"""What ``kvweave serve`` shows: to people on a terminal or in a log, or one JSON document a line for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from kvweave.cli.output import answers, notices, write_line
from kvweave.serving import Deployment, Fleet
from kvweave.serving.log_end import last_line, log_end
from kvweave.serving.probe import Question, Reply

SERVE_SCHEMA = "kvweave.serve/1"


class Report(Protocol):
    """What happens, in the order in which it may."""

    def notice(self, text: str) -> None:
        """Something that should be known; empty text is nothing."""

    def commands(self, deployments: Sequence[Deployment]) -> None:
        """What would be started."""

    def progress(self, deployments: Sequence[Deployment], fleet: Fleet) -> Any:
        """A context in which the fleet comes up."""

    def started(self, deployment: Deployment, seconds: float) -> None:
        """A program was started."""

    def healthy(self, deployment: Deployment, seconds: float) -> None:
        """A program is healthy, that long after its start."""

    def refresh(self) -> None:
        """A moment passed."""

    def trying(self) -> None:
        """A first question is asked through the router."""

    def ready(self, deployments: Sequence[Deployment], logs: Path, question: Question, failed: float) -> None:
        """Users may ask; ``failed`` loads of the first question had to be computed."""

    def died(self, deployment: Deployment, code: int, log: Path) -> None:
        """A program ended by itself; the others are ended."""

    def no_answer(self, reply: Reply) -> None:
        """The first question was not answered; all are ended."""

    def ending(self) -> None:
        """All are being ended."""

    def ended(self) -> None:
        """All have ended."""


def new_report(*, as_document: bool) -> Report:
    """The report for programs, or for people."""
    return _Documents() if as_document else _Lines()


class _Lines:
    """For people: a live table on a terminal, a line for each step elsewhere."""

    def __init__(self) -> None:
        self._console = notices()
        self._answers = answers()
        self._live: Live | None = None
        self._states: dict[str, str] = {}
        self._began = monotonic()
        self._fleet: Fleet | None = None
        self._deployments: tuple[Deployment, ...] = ()

    def notice(self, text: str) -> None:
        if text:
            self._say(f"note: {text}")

    def commands(self, deployments: Sequence[Deployment]) -> None:
        for deployment in deployments:
            self._answers.print(f"# {_title(deployment)}", markup=False, soft_wrap=True)
            self._answers.print(deployment.shell_line, markup=False, soft_wrap=True)

    @contextmanager
    def progress(self, deployments: Sequence[Deployment], fleet: Fleet) -> Iterator[None]:
        self._fleet, self._deployments = fleet, tuple(deployments)
        self._states = {deployment.name: "waits" for deployment in deployments}
        if not self._console.is_terminal:
            yield
            return
        with Live(self._table(), console=self._console, transient=True, refresh_per_second=8) as live:
            self._live = live
            yield
        self._live = None

    def started(self, deployment: Deployment, seconds: float) -> None:
        self._states[deployment.name] = "starting"
        if self._live is None and self._fleet is not None:
            self._say(f"{deployment.name}: starting at {deployment.url}, its log is {self._fleet.log(deployment)}")

    def healthy(self, deployment: Deployment, seconds: float) -> None:
        self._states[deployment.name] = f"healthy after {seconds:.0f} s"
        if self._live is None:
            self._say(f"{deployment.name}: healthy after {seconds:.0f} s")

    def refresh(self) -> None:
        if self._live is not None:
            self._live.update(self._table())

    def trying(self) -> None:
        self._states["a first question"] = "asked through the router"
        self.refresh()
        if self._live is None:
            self._say("asking a first question through the router")

    def ready(self, deployments: Sequence[Deployment], logs: Path, question: Question, failed: float) -> None:
        *servers, router = deployments
        if failed:
            self.notice(
                f"the first question's cache was not transferred but computed ({failed:.0f} failed loads); "
                f"the decode servers' logs in {logs} say why"
            )
        lines = [f"serving at {router.url}   (logs in {logs})"]
        width = max(len(server.name) for server in servers)
        lines += [f"  {server.name:{width}}  {server.url}  {server.shape}" for server in servers]
        lines += ["ask it:", f"  {question.curl(router.url)}", "Ctrl-C ends all of them."]
        self._answers.print("\n".join(lines), markup=False, soft_wrap=True)
        sys.stdout.flush()

    def died(self, deployment: Deployment, code: int, log: Path) -> None:
        self._fail(f"{deployment.name} {_how(code)}; the end of {log}:", log_end(log))

    def no_answer(self, reply: Reply) -> None:
        self._fail(f"all are healthy, but a first question was answered with HTTP {reply.status}:", reply.text[:2000])

    def ending(self) -> None:
        self._say("ending all of them (again Ctrl-C: at once)")

    def ended(self) -> None:
        self._say("all have ended")

    def _fail(self, what: str, text: str) -> None:
        self._console.print(Text.assemble(("error: ", "bold red"), what), soft_wrap=True)
        self._console.print(Text("\n".join(f"  | {line}" for line in text.splitlines())), soft_wrap=True)

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, state in self._states.items():
            waits = not state.startswith("healthy")
            table.add_row(
                Spinner("dots") if waits else Text("✓", "green"), Text(name), Text(state), self._activity(name)
            )
        table.add_row("", Text(f"{monotonic() - self._began:.0f} s", "dim"))
        return table

    def _activity(self, name: str) -> Text:
        starting = [program for program in self._deployments if program.name == name]
        if self._fleet is None or self._states[name] != "starting" or not starting:
            return Text("")
        return Text(last_line(self._fleet.log(starting[0]))[: _room(self._console)], "dim", no_wrap=True)


class _Documents:
    """For programs: one JSON object a line."""

    def notice(self, text: str) -> None:
        if text:
            _write("notice", message=text)

    def commands(self, deployments: Sequence[Deployment]) -> None:
        _write("planned", deployments=[_described(deployment) for deployment in deployments])

    @contextmanager
    def progress(self, deployments: Sequence[Deployment], fleet: Fleet) -> Iterator[None]:
        described = [_described(deployment) | {"log": str(fleet.log(deployment))} for deployment in deployments]
        _write("starting", deployments=described)
        yield

    def started(self, deployment: Deployment, seconds: float) -> None:
        _write("started", deployment=deployment.name)

    def healthy(self, deployment: Deployment, seconds: float) -> None:
        _write("healthy", deployment=deployment.name, seconds=round(seconds, 3))

    def refresh(self) -> None:
        """Nothing: only what happens is told."""

    def trying(self) -> None:
        """Nothing: ``ready`` follows."""

    def ready(self, deployments: Sequence[Deployment], logs: Path, question: Question, failed: float) -> None:
        *servers, router = deployments
        sides = {server.name: server.url for server in servers}
        ask = {"path": question.path, "body": question.body, "failed_loads": failed}
        _write("ready", url=router.url, logs=str(logs), servers=sides, question=ask)

    def died(self, deployment: Deployment, code: int, log: Path) -> None:
        _write("failed", deployment=deployment.name, process_exit_code=code, log=str(log), log_end=log_end(log))

    def no_answer(self, reply: Reply) -> None:
        _write("failed", http_status=reply.status, answer=reply.text)

    def ending(self) -> None:
        _write("ending")

    def ended(self) -> None:
        _write("ended")


def _write(event: str, **values: Any) -> None:
    write_line({"schema": SERVE_SCHEMA, "event": event} | values)
    sys.stdout.flush()


def _described(deployment: Deployment) -> dict[str, Any]:
    return {
        "name": deployment.name, "role": deployment.role, "shape": deployment.shape, "url": deployment.url,
        "command": list(deployment.command), "environment": dict(deployment.environment),
    }  # fmt: skip


def _title(deployment: Deployment) -> str:
    return f"{deployment.name} ({deployment.shape})" if deployment.shape else deployment.name


def _how(code: int) -> str:
    return f"ended with exit code {code}" if code <= 128 else f"was ended by signal {code - 128}"


def _room(console: Console) -> int:
    """Columns for the last line of a log."""
    return max(10, console.width - 45)
