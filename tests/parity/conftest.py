"""vLLM, or the reason why there is none; and the table of where the two differ on purpose."""

from __future__ import annotations

import importlib.util
import os
from types import SimpleNamespace

import pytest

from tests.parity import incumbent
from tests.parity.differences import DIFFERENCES, Figures

FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session", autouse=True)
def vllm() -> SimpleNamespace:
    """The installed vLLM; skips where there is none, unless KVWEAVE_REQUIRE_VLLM=1."""
    if importlib.util.find_spec("vllm") is None:
        if os.environ.get("KVWEAVE_REQUIRE_VLLM") == "1":
            pytest.fail("KVWEAVE_REQUIRE_VLLM=1, but vllm is not installed in this environment: run `make parity`")
        pytest.skip("vllm is not installed in this environment; `make parity` runs these tests in .venv-vllm")
    return incumbent.load()


@pytest.fixture
def figures(pytestconfig: pytest.Config) -> Figures:
    """Where a test notes how many elements each side placed wrong."""
    return pytestconfig.stash.setdefault(FIGURES, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The deliberate differences, with who is right."""
    figures = config.stash.get(FIGURES, {})
    if not figures:
        return
    terminalreporter.section("kvweave and vLLM differ on purpose")
    for difference in DIFFERENCES:
        terminalreporter.write_line(f"{difference.case}: {difference.what}")
        terminalreporter.write_line(f"    {difference.reason}")
        for pair in difference.pairs:
            terminalreporter.write_line(f"    {pair:>6}  {figures.get((difference.case, pair), '')}".rstrip())
