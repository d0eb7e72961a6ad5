"""Builds the preload library that keeps waiting workers off the cores (``gentle.c`` says why).

``KVWEAVE_E2E_GENTLE=0`` does without it, as a machine without a C compiler must.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def preload_library() -> Path | None:
    """The library, built once a machine; None where there is no C compiler or none is wanted: runs are then slower."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.environ.get("KVWEAVE_E2E_GENTLE") == "0":
        return None
    source = Path(__file__).with_suffix(".c")
    version = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    library = Path(tempfile.gettempdir()) / f"kvweave-gentle-{os.getuid()}-{version}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(source), "-ldl"], check=True)
        made.rename(library)
    return library
