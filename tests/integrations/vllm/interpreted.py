"""Runs vLLM's own Triton kernels where there is no GPU: their source as it is, by Triton's interpreter."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import triton.language as triton_language
from triton.language import standard
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

importlib.import_module("triton.experimental.gluon")  # imported in passing; before anything is patched


@contextmanager
def interpreted(module: Any, owner: Any, name: str) -> Iterator[None]:
    """The kernel ``owner.name`` of a module of vLLM's, and Triton's own functions for it, until the block ends."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(module, "tl", triton_language))
        stack.enter_context(patch.object(owner, name, _interpreter(getattr(owner, name))))
        for place, function in _library():
            stack.enter_context(patch.object(place, function, _interpreter(getattr(place, function).fn)))
        yield


def _library() -> Iterator[tuple[Any, str]]:
    for place in (standard, triton_language):
        for name, value in list(vars(place).items()):
            if isinstance(value, JITFunction):
                yield place, name


@cache
def _interpreter(kernel: Any) -> Any:
    return InterpretedFunction(kernel)
