"""The house rules that no linter holds: sizes, names, mirrored tests, one version, nothing of anybody's machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvweave
from kvweave.version import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kvweave"
MODULES = sorted(SOURCE.rglob("*.py"))

LINES_PER_FILE = 400
LINES_PER_FUNCTION = 60
ABBREVIATED = re.compile(
    r"(^|_)(xfer|descs?|blks?|meta|idx|cfg|cnt|ptr|buf|tmp|mgr|ctx|reqs?|addrs?|src|dst|tgt)(_|$)", re.IGNORECASE
)
TESTED_ELSEWHERE = {
    "__main__.py": "runs cli.main; tests/test_docs.py runs the commands through it",
    "testing/source_process.py": "it is a process for tests; tests/transport/test_nixl.py reads, stops and kills it",
    "testing/transport_contract.py": "it is a suite of tests; tests/transport runs it on every transport",
    "version.py": "the version test below",
}
"""Modules without a test file of their own, and what tests them. Package docstrings need none."""

NAMED_ELSEWHERE = {
    "benchmarks/playback.py": "it stands for NIXL's agent",
    "integrations/vllm/connector.py": "the names are those of vLLM's connector interface",
}
"""Modules whose functions another project names."""

# In pieces, so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "op" + "t"]) + r")/\w")
REGISTRY_HOSTS = re.compile(
    "|".join(["py" + r"pi\.org", "python" + "hosted", "npm" + r"js\.", "download" + r"\.pytorch"])
)


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in MODULES:
        yield relative(path), ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}:{node.lineno} {node.name}", node


def tracked_texts() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".png", ".jpg"}:
            yield name, path.read_text(encoding="utf-8", errors="replace")


def test_no_file_is_too_long() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_PER_FILE} == {}


def test_no_function_is_too_long() -> None:
    lengths = {place: (node.end_lineno or 0) - node.lineno + 1 for place, node in functions()}
    assert {place: lines for place, lines in lengths.items() if lines > LINES_PER_FUNCTION} == {}


def test_no_function_name_is_abbreviated() -> None:
    found = [place for place, node in functions() if ABBREVIATED.search(node.name)]
    assert [place for place in found if place.split(":")[0] not in NAMED_ELSEWHERE] == []


def test_source_has_no_assert() -> None:
    product = [(name, tree) for name, tree in trees() if not name.startswith("testing/")]
    found = [
        f"{name}:{node.lineno}" for name, tree in product for node in ast.walk(tree) if isinstance(node, ast.Assert)
    ]
    assert found == []


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_module_opens_with_what_it_decides(module: Path) -> None:
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    assert len(docstring.split()) >= 4


@pytest.mark.parametrize("module", [path for path in MODULES if path.name != "__init__.py"], ids=relative)
def test_module_has_its_own_test_file(module: Path) -> None:
    mirrored = ROOT / "tests" / module.relative_to(SOURCE).parent / f"test_{module.stem}.py"
    assert mirrored.exists() or relative(module) in TESTED_ELSEWHERE, f"write {mirrored.relative_to(ROOT)}"


def test_exceptions_to_mirrored_tests_are_still_needed() -> None:
    gone = [name for name in TESTED_ELSEWHERE if not (SOURCE / name).exists()]
    assert gone == []


def test_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/kvweave/version.py"
    assert kvweave.__version__ == __version__
    stated = [
        name for name, text in tracked_texts() if name.endswith(".py") and re.search(r'^__version__ = "', text, re.M)
    ]
    assert stated == ["src/kvweave/version.py"]


def test_changelog_knows_no_newer_version() -> None:
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert released[:1] in ([], [__version__])


@pytest.mark.parametrize("forbidden", [MACHINE_PATHS, REGISTRY_HOSTS], ids=["machine paths", "registry hosts"])
def test_no_file_speaks_of_somebodys_machine(forbidden: re.Pattern[str]) -> None:
    assert {name: match[0] for name, text in tracked_texts() if (match := forbidden.search(text))} == {}


def test_readme_commands_are_in_the_help() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `kvweave (\w+)` \|", readme, re.M))
    help_text = subprocess.run([sys.executable, "-m", "kvweave", "--help"], capture_output=True, text=True, check=True)
    assert named and named <= set(help_text.stdout.split())


def test_base_install_brings_nothing_heavy() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=!~\[ ]", requirement)[0] for requirement in project["dependencies"]}
    assert names <= {"msgspec", "numpy", "pyyaml", "rich", "typer"}


def test_torch_is_pinned_wherever_it_is_asked_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asking = {
        extra
        for extra, needed in extras.items()
        if any(n.startswith(("nixl", "torch", "transformers")) for n in needed)
    }
    assert {extra for extra, needed in extras.items() if "torch==2.13.0" in needed} == asking
