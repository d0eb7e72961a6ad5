import typer
from typer.testing import CliRunner

from kvweave.cli.command import Command


def test_a_command_shows_its_examples_each_on_a_line_of_its_own():
    app = typer.Typer(rich_markup_mode="rich")
    Command("weave", lambda: None, ("kvweave weave --one", "kvweave weave --two"), "A note.").add_to(app)
    Command("spin", lambda: None, ()).add_to(app)
    lines = [line.strip() for line in CliRunner().invoke(app, ["weave", "--help"]).stdout.splitlines()]
    assert [line for line in lines if line in ("kvweave weave --one", "kvweave weave --two", "A note.")] == [
        "kvweave weave --one",
        "kvweave weave --two",
        "A note.",
    ]
