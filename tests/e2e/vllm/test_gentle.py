"""Waiting is a sleep in the processes that are started gently, with a C compiler and without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.vllm.gentle import gentle, preload_library

SWITCHES = """
import os, resource
yields = 2000
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
for _ in range(yields):
    os.sched_yield()
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before >= yields // 2)
"""
"""Whether yields gave the core away as a sleep does; where others take it first, a sleep may find its time over."""


@pytest.fixture(params=["library", "no compiler"])
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setenv("KVWEAVE_E2E_GENTLE", "0" if request.param == "no compiler" else "1")
    preload_library.cache_clear()
    if request.param == "library" and preload_library() is None:
        pytest.skip("no C compiler")
    yield gentle(os.environ)
    preload_library.cache_clear()


def test_a_yield_is_a_sleep(environment: dict[str, str]) -> None:
    ran = subprocess.run([sys.executable, "-c", SWITCHES], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


def test_what_stood_there_stays(environment: dict[str, str]) -> None:
    name = "LD_PRELOAD" if preload_library() else "PYTHONPATH"
    first, second = gentle({name: "other"})[name].split(os.pathsep)
    assert first and second == "other"
