"""From an error to one clean message and an exit code: 0 it works, 1 the answer is no, 2 the question is wrong.

Everything that kvweave raises on purpose becomes a message on stderr, or with ``--json`` a document on stdout, in one
line. An error that is not ours is a fault of the program and keeps its traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.text import Text
from typer import Abort, Exit, TyperException
from typer.core import TyperGroup

from kvweave.cli.output import ERROR_SCHEMA, notices, write_line
from kvweave.errors import (
    ConfigurationError,
    IncompatibleLayouts,
    IncompatiblePeer,
    KVWeaveError,
    LayoutError,
    Mismatch,
)

ANSWER_IS_NO = 1
WRONG_QUESTION = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What shells report for a command that a signal ended: 128 + SIGINT, 128 + SIGPIPE."""


def exit_code_of(error: KVWeaveError) -> int:
    """1 for an answer, 2 for a question that no engine could be meant by."""
    return WRONG_QUESTION if isinstance(error, ConfigurationError | LayoutError) else ANSWER_IS_NO


def mismatch_document(problem: Mismatch) -> dict[str, str]:
    """One mismatch for programs."""
    return {"field": problem.field, "source": problem.source, "target": problem.target, "remedy": problem.remedy}


class KVWeaveGroup(TyperGroup):
    """The command group: runs a command and turns its errors into messages and exit codes."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Runs the command line; always ends with ``SystemExit``."""
        arguments = list(sys.argv[1:] if args is None else args)
        options["standalone_mode"] = False
        sys.exit(self._run(arguments, *rest, **options))

    def invoke(self, ctx: Any) -> Any:
        """Runs the chosen command; a reader that went away is no error."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Exit(BROKEN_PIPE) from None
        return answer

    def _run(self, arguments: list[str], *rest: Any, **options: Any) -> int:
        wants_document = "--json" in arguments
        try:
            code = super().main(arguments, *rest, **options)
        except KVWeaveError as error:
            code = exit_code_of(error)
            _report(type(error).__name__, str(error), _problems(error), code, wants_document)
        except TyperException as error:
            code = WRONG_QUESTION
            _report("UsageError", _usage_text(error), (), code, wants_document)
        except Abort:
            code = INTERRUPTED
        return code if isinstance(code, int) else 0


def _report(kind: str, message: str, problems: Sequence[Mismatch], code: int, wants_document: bool) -> None:
    if wants_document:
        found = [mismatch_document(problem) for problem in problems]
        error = {"kind": kind, "message": message, "problems": found}
        write_line({"schema": ERROR_SCHEMA, "exit_code": code, "error": error})
        return
    notices().print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)


def _problems(error: KVWeaveError) -> tuple[Mismatch, ...]:
    return error.problems if isinstance(error, IncompatibleLayouts | IncompatiblePeer) else ()


def _usage_text(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "kvweave"
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    return f"{message.rstrip('.')}; see {command} --help"
