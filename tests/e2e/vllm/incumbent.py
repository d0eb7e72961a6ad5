"""Why the incumbent did not answer: the exception in its log, which a client does not see."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from tests.e2e.vllm.results import FAILED, REFUSED, Row

_PREFIX = re.compile(r"^(\([^)]*\)\s*)?((INFO|WARNING|ERROR)\s[\d-]+ [\d:]+ \[[^\]]*\]\s*)?")
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception))(?:: (.*))?$")
_CONSEQUENCES = ("EngineDeadError", "EngineGenerateError", "CancelledError", "TimeoutError")
_OF_VLLM = ("initialization failed", "cancelled", "cancel_scope")
"""Exceptions that only say that there was another one."""


def explained(row: Row, logs: Iterable[str]) -> Row:
    """A failed row as refused, where a log says by which exception most of its prompts or its start were refused."""
    reason = next((found for log in logs if (found := refusal(log))), "")
    if row.outcome != FAILED or not reason:
        return row
    return replace(row, outcome=REFUSED, detail=reason)


def refusal(log: str) -> str:
    """The last exception of a log that isn't the consequence of another, or nothing.

    >>> refusal(
    ...     "(Worker pid=7) ERROR 11-29 22:53:10 [worker.py:7] NotImplementedError: no stages\\nEngineDeadError: see"
    ... )
    'no stages'
    """
    for line in reversed(log.splitlines()):
        found = _EXCEPTION.match(_PREFIX.sub("", line).strip())
        if found and found[1] not in _CONSEQUENCES and not any(word in (found[2] or "") for word in _OF_VLLM):
            return found[2] or f"a bare {found[1]}"
    return ""
