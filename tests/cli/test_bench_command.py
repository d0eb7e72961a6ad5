from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.cli import bench_command
from kvweave.cli.bench_command import check_chosen, check_pictures, finish
from kvweave.errors import ConfigurationError


def line(ratio: float) -> Line:
    values = (Value.of("kvweave", "GB/s", [2.0]), Value.of("memcpy", "GB/s", [4.0]))
    return Line("contiguous", "256 MB", values, "speed by memcpy's", ratio, Limit(Bound.AT_LEAST, 0.5))


@pytest.mark.parametrize(("ratio", "code"), [(0.5, 0), (0.4, 1)], ids=["holds", "broken"])
def test_a_broken_limit_is_the_answer_no(ratio: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    with pytest.raises(typer.Exit) as ended:
        finish([line(ratio)], quick=False, pictures=(), as_document=True)
    document = json.loads(capsys.readouterr().out)
    assert ended.value.exit_code == code and document["ok"] is (code == 0)


def test_an_unknown_measurement_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="'speed' is no measurement; use one of contiguous, fragmented"):
        check_chosen(["loop", "speed"])
    assert check_chosen(["loop"]) == ("loop",) and check_chosen([]) == bench_command.MEASUREMENTS


@pytest.mark.parametrize(
    ("file", "message"),
    [("speed.pdf", "ends neither in .png nor in .svg"), ("missing/speed.svg", "the folder of .* does not exist")],
    ids=["another form", "no folder"],
)
def test_a_picture_that_could_not_be_drawn_is_refused_before_measuring(file: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_pictures([tmp_path / file])
