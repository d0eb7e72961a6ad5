"""The command line as a whole, and as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvweave.cli import COMMANDS
from kvweave.version import __version__

SOURCE = Path(__file__).parents[2] / "src"
LARGE = ("plan", "-m", "nemotron-h-56b", "-p", "tp=8", "-d", "tp=64", "--json")


def start(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        [sys.executable, "-m", "kvweave", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_help_lists_the_commands_in_order(run):
    lines = run("--help").stdout.partition("Commands")[2].splitlines()
    first_words = [line.strip("│ ").partition(" ")[0] for line in lines]
    names = [command.name for command in COMMANDS]
    assert [word for word in first_words if word in names] == names


def test_no_arguments_show_the_help(run):
    assert run().stdout.strip() == run("--help").stdout.strip()


def test_the_version_is_the_package_s(run):
    assert run("--version").stdout == f"kvweave {__version__}\n"


@pytest.mark.parametrize("name", ["simulate"])
def test_commands_of_later_issues_do_not_exist(run, name):
    assert run(name).exit_code == 2


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_examples_in_its_help(run, command):
    shown = " ".join(run(command.name, "--help").stdout.split())
    assert command.examples
    assert [example for example in command.examples if example not in shown] == []


EXAMPLES = [
    example for command in COMMANDS for example in command.examples if command.name in ("plan", "check", "models")
]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if "path/to" not in example])
def test_every_example_can_be_typed(run, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*example.split()[1:])
    assert result.exit_code in (0, 1)
    assert result.stderr == ""


def test_the_module_is_the_command():
    process = start("plan", "-m", "nothing", "-p", "tp=1", "-d", "tp=1")
    answer, notice = process.communicate()
    assert (process.returncode, answer) == (2, "")
    assert notice.startswith("error: model: 'nothing'")


def test_a_reader_that_goes_away_ends_the_command_quietly():
    process = start(*LARGE)
    assert process.stdout.read(1) == "{"
    process.stdout.close()
    notice = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), notice) == (141, "")
