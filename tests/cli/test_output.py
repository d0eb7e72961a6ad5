import json

import pytest

from kvweave.cli.output import add_row, answers, format_bytes, format_seconds, new_table, notices, write_document


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (5 * 2**50, "5,120 TiB")],
)
def test_bytes_are_written_in_the_largest_unit(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 ms"), (0.0015, "1.5 ms"), (1, "1 s"), (93.21, "93.2 s")])
def test_seconds_are_written_short(seconds, text):
    assert format_seconds(seconds) == text


def test_a_document_goes_to_stdout(capsys):
    write_document({"a": [1]})
    assert json.loads(capsys.readouterr().out) == {"a": [1]}


def test_answers_go_to_stdout_and_notices_to_stderr(capsys):
    answers().print("an answer")
    notices().print("a notice")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("an answer\n", "a notice\n")


@pytest.mark.parametrize("open_console", [answers, notices])
def test_a_broken_pipe_is_left_to_the_command_group(open_console):
    with pytest.raises(BrokenPipeError):
        open_console().on_broken_pipe()


def test_a_cell_is_plain_text(capsys):
    table = new_table()
    table.add_column("name")
    add_row(table, "[/bold] [red]x")
    answers().print(table)
    assert "[/bold] [red]x" in capsys.readouterr().out
