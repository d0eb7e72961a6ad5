"""Why a program died, out of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvweave.serving.log_end import LAST_LINES, last_line, log_end

CAUSE = "kvweave.errors.ConfigurationError: vllm: version 0.31 is not known"
LOG = "\n".join(
    [
        "(EngineCore pid=7) INFO 11-29 22:10:01 [core.py:95] Initializing an engine",
        f"\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 11-29 22:10:03 [core.py:700] {CAUSE}",
        *(f"line {number}" for number in range(40)),
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "",
    ]
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    written = tmp_path / "prefill.log"
    written.write_text(LOG)
    return written


def test_the_cause_comes_last_and_is_not_the_last_error(log: Path) -> None:
    assert log_end(log).splitlines()[-1] == f"cause: {CAUSE}"
    assert "cause: RuntimeError" not in log_end(log)


@pytest.mark.parametrize(
    ("line", "is_cause"),
    [
        ("api_server.py: error: argument --block-size: invalid choice", True),
        ("(Worker pid=8) ERROR 11-29 22:10:03 [multiproc.py:9] Exception: no room", True),
        ("raise it, or you may see `OSError: [Errno 24] Too many open files`", False),
        ("RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause", False),
        ("    raise ValueError(message)", False),
    ],
    ids=["argument", "a worker's", "only mentioned", "a consequence", "code"],
)
def test_a_cause_is_a_line_that_begins_with_an_error(line: str, is_cause: bool, log: Path) -> None:
    log.write_text(f"{line}\n" + "more\n" * 40)
    assert ("cause: " in log_end(log)) == is_cause


def test_the_last_lines_come_first(log: Path) -> None:
    assert log_end(log).splitlines()[:-1] == LOG.splitlines()[-LAST_LINES:]


def test_a_cause_is_named_once(log: Path) -> None:
    log.write_text(LOG + LOG)
    assert log_end(log).count("cause: ") == 1


def test_an_empty_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    assert (log_end(tmp_path / "log"), last_line(tmp_path / "log")) == ("(nothing was written)", "")


def test_the_last_line_is_bare(log: Path) -> None:
    log.write_text("\x1b[32m(Worker pid=9)\x1b[0m INFO 11-29 22:10:01 [loader.py:7] Loading weights\n\n")
    assert last_line(log) == "Loading weights"


def test_a_progress_bar_s_last_state_counts(log: Path) -> None:
    log.write_text("Loading: 0%\rLoading: 50%\rLoading: 75%")
    assert last_line(log) == "Loading: 75%"
