"""Runs the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from kvweave.cli import app


@pytest.fixture
def run() -> Callable:
    """Runs ``kvweave`` with these arguments; the result has ``exit_code``, ``stdout`` and ``stderr``."""

    def run(*arguments: str):
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})

    return run


@pytest.fixture
def run_document(run) -> Callable:
    """Runs ``kvweave ... --json``; gives the exit code and the document."""

    def run_document(*arguments: str):
        result = run(*arguments, "--json")
        return result.exit_code, json.loads(result.stdout)

    return run_document
