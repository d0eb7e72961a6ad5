"""Every example of the documentation runs: Python blocks, shell lines, JSON documents, links."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DOCTEST_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SETS_ITSELF_UP = {"bench", "demo", "serve"}
"""Commands of kvweave whose examples need more than a second; tests/e2e and tests/benchmarks run them."""


@dataclass(frozen=True)
class Example:
    language: str
    line: int
    text: str


def examples(document: Path, language: str) -> list[Example]:
    text = document.read_text(encoding="utf-8")
    found = [Example(match[1], text.count("\n", 0, match.start()) + 2, match[2]) for match in FENCE.finditer(text)]
    return [example for example in found if example.language == language]


def documents_with(language: str) -> list[Any]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS if examples(path, language)]


def shell_commands(program: str) -> list[Any]:
    lines = [line for path in DOCUMENTS for example in examples(path, "sh") for line in example.text.splitlines()]
    commands = [line.partition("  #")[0].strip() for line in lines if line.startswith(program + " ")]
    return [pytest.param(command, id=command) for command in dict.fromkeys(commands)]


@pytest.mark.parametrize("document", documents_with("python"))
def test_python_examples_run_in_order(document: Path) -> None:
    namespace: dict[str, Any] = {}
    for example in examples(document, "python"):
        if ">>>" not in example.text:
            exec(compile("\n" * (example.line - 1) + example.text, str(document), "exec"), namespace)
            continue
        test = doctest.DocTestParser().get_doctest(example.text, namespace, document.name, str(document), example.line)
        test.globs = namespace  # not a copy: functions of one example serve the next
        report: list[str] = []
        doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS).run(test, out=report.append, clear_globs=False)
        assert not report, "".join(report)


@pytest.mark.parametrize("document", documents_with("json"))
def test_json_examples_are_json(document: Path) -> None:
    for example in examples(document, "json"):
        assert json.loads(example.text)


@pytest.mark.parametrize(
    "command", [c for c in shell_commands("kvweave") if c.values[0].split()[1] not in SETS_ITSELF_UP]
)
def test_kvweave_examples_exit_with_zero(command: str, tmp_path: Path) -> None:
    arguments = shlex.split(command)[1:]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    program = [sys.executable, "-m", "kvweave"]
    done = subprocess.run(
        [*program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", shell_commands("make"))
def test_make_examples_name_a_target(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target = shlex.split(command)[1]
    assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"the Makefile has no target {target}"


@pytest.mark.parametrize("document", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    targets = [target for target in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == []
