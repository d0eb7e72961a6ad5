"""What a process holds: memory, open files, threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Footprint:
    """One look at one process."""

    resident_bytes: int
    open_files: int
    threads: int

    @staticmethod
    def now(process: int | str = "self") -> Footprint:
        """Of this process, or of the one with that number."""
        folder = Path("/proc") / str(process)
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        resident = int(status["VmRSS"].split()[0]) * 1024
        return Footprint(resident, len(list((folder / "fd").iterdir())), int(status["Threads"]))

    def __str__(self) -> str:
        return f"{self.resident_bytes / 2**20:.1f} MiB, {self.open_files} files, {self.threads} threads"
