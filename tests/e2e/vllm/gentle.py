"""Keeps waiting workers off the cores, so that several servers share two of them (``gentle.c`` says why).

With a C compiler a preload library does it. Without one, or with ``KVWEAVE_E2E_GENTLE=0``, Python's ``os.sched_yield``
becomes a short sleep, which is what vLLM's workers wait by; NixlConnector's progress threads then spin as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SITE = '''"""Waiting by os.sched_yield is a short sleep here: see gentle.py of kvweave's tests."""

import os
import time

os.sched_yield = lambda: time.sleep(5e-5)
'''


def gentle(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with what makes a server's workers wait gently."""
    library = preload_library()
    name, value = ("PYTHONPATH", _site_folder()) if library is None else ("LD_PRELOAD", library)
    return {**environment, name: os.pathsep.join(filter(None, [str(value), environment.get(name, "")]))}


@cache
def preload_library() -> Path | None:
    """The library, built once a machine; None where there is no C compiler or none is wanted."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.environ.get("KVWEAVE_E2E_GENTLE") == "0":
        return None
    source = Path(__file__).with_suffix(".c")
    library = _kept(source.read_bytes()).with_suffix(".so")
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(source), "-ldl"], check=True)
        made.rename(library)
    return library


@cache
def _site_folder() -> Path:
    """A folder with the module that Python imports at every start."""
    folder = _kept(SITE.encode())
    folder.mkdir(exist_ok=True)
    made = folder / f"{os.getpid()}"
    made.write_text(SITE)
    made.rename(folder / "sitecustomize.py")
    return folder


def _kept(content: bytes) -> Path:
    """Where a thing of this content is kept, of this user."""
    return Path(tempfile.gettempdir()) / f"kvweave-gentle-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:12]}"
