"""vLLM, or the reason why there is none; and the table of where the two differ on purpose."""

from __future__ import annotations

import importlib.util
import os
from itertools import groupby
from types import SimpleNamespace

import pytest

from tests.parity import incumbent
from tests.parity.differences import DIFFERENCES, Difference, Figures

FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session", autouse=True)
def vllm(pytestconfig: pytest.Config) -> SimpleNamespace:
    """The installed vLLM; skips where there is none, unless KVWEAVE_REQUIRE_VLLM=1."""
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("KVWEAVE_REQUIRE_VLLM") == "1":
            pytest.fail("KVWEAVE_REQUIRE_VLLM=1, but vllm is not installed in this environment: run `make parity`")
        pytest.skip("vllm is not installed in this environment; `make parity` runs these tests in .venv-vllm")
    pytestconfig.stash[FIGURES] = {}
    return incumbent.load()


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> Figures:
    """Where a test notes how many channels each side placed wrong."""
    return pytestconfig.stash[FIGURES]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The deliberate differences, with who is right."""
    if FIGURES not in config.stash:
        return
    terminalreporter.section("kvweave and vLLM differ on purpose")
    for reason, entries in groupby(DIFFERENCES, lambda entry: entry.reason):
        terminalreporter.write_line(f"\n{reason}")
        for entry in entries:
            terminalreporter.write_line(f"  {entry.case}, {entry.what}")
            for line in table(entry, config.stash[FIGURES]):
                terminalreporter.write_line(f"    {line}")


def table(entry: Difference, figures: Figures) -> list[str]:
    """A line per pair that has a figure, and the other pairs on one."""
    counted = [pair for pair in entry.pairs if entry.what in ("bytes", "reads") and (entry.case, pair) in figures]
    rest = [pair for pair in entry.pairs if pair not in counted]
    return [f"{pair:>4}  {figures[entry.case, pair]}" for pair in counted] + ([" ".join(rest)] if rest else [])
