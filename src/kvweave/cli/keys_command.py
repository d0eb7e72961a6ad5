"""``kvweave keys``: makes and shows the keys that close a control channel to everybody else."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kvweave.cli.command import Command
from kvweave.cli.options import AsDocument
from kvweave.cli.output import add_row, answers, new_table, write_document
from kvweave.errors import ConfigurationError

KEYS_SCHEMA = "kvweave.keys/1"


class Action(StrEnum):
    """What to do with keys."""

    MAKE = "make"
    SHOW = "show"


def keys(
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="Make a pair, or show what a folder or a file holds.")
    ],
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where keys are; to show one, its file.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What a new pair is called.")] = "engine",
    as_document: AsDocument = False,
) -> None:
    """Make and show keys: an engine with keys talks to nobody but the engines whose public keys it was given."""
    found = _make(path, name) if action is Action.MAKE else _show(path)
    if as_document:
        write_document({"schema": KEYS_SCHEMA, "keys": found})
        return
    console = answers()
    table = new_table()
    for title in ("name", "public key", "fingerprint", "secret key"):
        table.add_column(title, overflow="fold")
    for key in found:
        add_row(table, key["name"], key["public_key"], key["fingerprint"], "here" if key["has_secret"] else "not here")
    console.print(table)
    if action is Action.MAKE:
        text = f"{path / (name + '.key_secret')} stays here; give {path / (name + '.key')} to the other side's engines"
        console.print(text, markup=False, soft_wrap=True)


def _make(folder: Path, name: str) -> list[dict[str, Any]]:
    return [_document(_library().make_key_files(folder, name))]


def _show(path: Path) -> list[dict[str, Any]]:
    library = _library()
    found = library.read_key_folder(path) if path.is_dir() else [library.KeyFile.read(path)]
    if not found:
        raise ConfigurationError(f"keys: {path} holds no .key file; make a pair: kvweave keys make {path}")
    return [_document(key) for key in found]


def _document(key: Any) -> dict[str, Any]:
    return {
        "name": key.name, "public_key": key.public, "fingerprint": _library().fingerprint(key.public),
        "has_secret": key.secret is not None,
    }  # fmt: skip


def _library() -> Any:
    """The module with the keys, which needs pyzmq."""
    try:
        from kvweave.runtime import keys as library
    except ImportError as error:
        raise ConfigurationError(f"keys: {error}; install what they need: pip install 'kvweave[nixl]'") from error
    return library


KEYS = Command(
    "keys",
    keys,
    ("kvweave keys make prefill-keys", "kvweave keys show prefill-keys --json"),
    "An engine has its own .key_secret file and a folder with the .key files of the other side.",
)
