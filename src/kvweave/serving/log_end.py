"""What a log says about why a program died: the last lines of all, and those that name an error."""

from __future__ import annotations

import re
from pathlib import Path

LAST_LINES = 20
CAUSES = 3
_READ_BYTES = 1 << 20
_ERROR = re.compile(r"[A-Za-z_.]*(?:Error|Exception): \S|\S+: error: \S")
_CONSEQUENCE = re.compile(r"root cause|initialization failed")
_PREFIX = re.compile(r"^(?:\x1b\[[0-9;]*m|\([^)]*pid=\d+\)|\s|(?:ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\])+")


def log_end(log: Path) -> str:
    """The end of a log, without colours, and then the causes, which stand further above in it.

    vLLM's workers, engine and API server each fail because the one before did, so the cause is seldom at the end.
    """
    lines = _lines(log)
    last = lines[-LAST_LINES:]
    bare = [_bare(line) for line in lines]
    named = [line for line in bare if _ERROR.match(line) and not _CONSEQUENCE.search(line)]
    causes = list(dict.fromkeys(named))[:CAUSES]
    return "\n".join([*last, *(f"cause: {cause}" for cause in causes)]) or "(nothing was written)"


def last_line(log: Path) -> str:
    """The last line that says something, without its prefix."""
    return next((line for line in map(_bare, reversed(_lines(log, 4096))) if line), "")


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).strip()


def _lines(log: Path, most: int = _READ_BYTES) -> list[str]:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - most))
        text = stream.read().decode(errors="replace")
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]
