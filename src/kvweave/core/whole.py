"""Whole numbers: the one check that sizes, counts, strides and addresses go through.

Python's whole numbers have no end, numpy's have: what passes here can be counted and multiplied in the arithmetic of
rows without surprise. numpy's own numbers are refused, as they wrap around silently.
"""

from __future__ import annotations

from kvweave.errors import ConfigurationError, KVWeaveError

LARGEST = 2**63 - 1


def require_whole(
    owner: str,
    least: int | None = 0,
    most: int = LARGEST,
    error: type[KVWeaveError] = ConfigurationError,
    **values: object,
) -> None:
    """Raises ``error``, naming owner and value, unless every value is a whole number from ``least`` to ``most``.

    >>> require_whole("axis head", least=1, size=0)
    Traceback (most recent call last):
    kvweave.errors.ConfigurationError: axis head: size is 0; it must be a whole number of at least 1
    """
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
            bound = "" if least is None else f" of at least {least}"
            raise error(f"{owner}: {name} is {value!r}; it must be a whole number{bound}")
        if value > most:
            raise error(f"{owner}: {name} is {value}; it must be a whole number of at most {most}")
