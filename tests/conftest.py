"""Order of the tests, so that the cheap and telling ones fail first, and how hypothesis runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Here, because the doctests of src import these modules before the tests that use them are collected.
pytest.register_assert_rewrite("kvweave.testing")

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

ORDER = (
    "core",
    "models",
    "protocol",
    "transport",
    "conformance",
    "runtime",
    "engines",
    "integrations",
    "sim",
    "testing",
)
LAST = ("cli", "parity", "bench", "examples", "e2e", "faults")
ROOT = Path(__file__).parent


def rank(path: Path) -> int:
    """Doctests and the house first, then the layers from below, then what starts processes."""
    folder = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""
    if folder in LAST:
        return 100 + LAST.index(folder)
    return 1 + ORDER.index(folder) if folder in ORDER else 0


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Files with tests have no doctests: a doctest whose import fails is skipped, a test file must be an error."""
    found = yield
    return [made for made in found if type(made) is pytest.Module] if file_path.name.startswith("test_") else found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))


ORACLE_CASES = "oracle cases"


@pytest.fixture
def count_cases(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """Notes how many transfers a test proved with the byte oracle; the summary adds them up."""
    return lambda number: record_property(ORACLE_CASES, number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    noted = [note for report in terminalreporter.getreports("passed") for note in report.user_properties]
    proved = sum(int(str(number)) for name, number in noted if name == ORACLE_CASES)
    if proved:
        terminalreporter.write_line(f"oracle: {proved:,} cases")
