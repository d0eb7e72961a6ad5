"""A file by which a test commands a transport in a server's worker (``stalling``)::

<file>         the next read is held; the transport renames the file to <file>.held
<file>.held    is removed by the test: the held read begins
"""

from __future__ import annotations

from pathlib import Path

STALL_FILE = "stall_file"
"""The key of the file's path in ``kv_connector_extra_config``."""


def held_file(file: Path) -> Path:
    """The file that is there as long as a read is held."""
    return file.with_name(f"{file.name}.held")
