import json

import pytest
import typer
from typer.testing import CliRunner

from kvweave.cli.failure import KVWeaveGroup, exit_code_of, mismatch_document
from kvweave.errors import (
    BlockTableError,
    ConfigurationError,
    IncompatibleLayouts,
    LayoutError,
    Mismatch,
    PlanError,
    TransferRefused,
)

MISMATCH = Mismatch("dtype", "bfloat16", "fp8_e4m3", "choose one")


def run_raising(error, *arguments):
    app = typer.Typer(cls=KVWeaveGroup, pretty_exceptions_enable=False)

    @app.callback()
    def group() -> None:
        """A group, so that the command has a name."""

    @app.command()
    def work(size: int = 1, as_document: bool = typer.Option(False, "--json")) -> None:
        if error is not None:
            raise error

    return CliRunner().invoke(app, ["work", *arguments])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 2),
        (LayoutError("x"), 2),
        (PlanError("x"), 1),
        (BlockTableError("x"), 1),
        (IncompatibleLayouts([MISMATCH]), 1),
        (TransferRefused("claimed", "x"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_an_answer_or_a_wrong_question(error, code):
    assert exit_code_of(error) == code
    assert run_raising(error).exit_code == code


def test_a_message_goes_to_stderr_and_nothing_else_anywhere():
    result = run_raising(ConfigurationError("tp: [4] is wrong"))
    assert (result.stdout, result.stderr) == ("", "error: tp: [4] is wrong\n")


def test_with_json_the_message_is_a_document_on_stdout():
    result = run_raising(IncompatibleLayouts([MISMATCH]), "--json")
    assert result.stderr == ""
    assert json.loads(result.stdout) == {
        "schema": "kvweave.error/1",
        "exit_code": 1,
        "error": {
            "kind": "IncompatibleLayouts",
            "message": "dtype: source has bfloat16, target has fp8_e4m3; choose one",
            "problems": [mismatch_document(MISMATCH)],
        },
    }


@pytest.mark.parametrize("arguments", [["--size", "nan"], ["--sice", "1"], ["surplus"]], ids=" ".join)
def test_a_wrong_option_is_a_usage_error_in_one_line(arguments):
    result = run_raising(None, *arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr


def test_a_wrong_option_with_json_is_a_document():
    document = json.loads(run_raising(None, "--size", "nan", "--json").stdout)
    assert (document["error"]["kind"], document["exit_code"]) == ("UsageError", 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), typer.Abort()], ids=["Ctrl-C", "abort"])
def test_an_interrupted_command_ends_quietly(error):
    result = run_raising(error)
    assert (result.exit_code, result.output.strip()) == (130, "")


def test_a_command_may_choose_its_exit_code():
    assert run_raising(typer.Exit(1)).exit_code == 1
    assert run_raising(None).exit_code == 0


def test_a_fault_of_the_program_is_not_hidden():
    assert isinstance(run_raising(ZeroDivisionError()).exception, ZeroDivisionError)
