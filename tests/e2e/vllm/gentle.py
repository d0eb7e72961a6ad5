"""Builds the preload library that keeps waiting workers off the cores (``gentle.c`` says why)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def preload_library() -> Path | None:
    """The library, built once a run; None where there is no C compiler: runs are then merely slower."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="kvweave-gentle-")) / "gentle.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    return library
