"""The error tree: whose fault, what it says, what it carries."""

from __future__ import annotations

import pytest

from kvweave import errors
from kvweave.errors import (
    IncompatibleLayouts,
    IncompatiblePeer,
    KVWeaveError,
    Mismatch,
    TransferRefused,
    TransportError,
)

EVERY_ERROR = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
USERS_FAULT = [
    errors.ConfigurationError,
    errors.LayoutError,
    errors.PlanError,
    errors.BlockTableError,
    IncompatibleLayouts,
]
TWO_PROBLEMS = (Mismatch("dtype", "bfloat16", "float16", "use one"), Mismatch("taps", "3", "4", "align them"))


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_error_has_one_root(kind: type[Exception]) -> None:
    assert issubclass(kind, KVWeaveError)


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_only_the_users_fault_is_a_value_error(kind: type[Exception]) -> None:
    assert issubclass(kind, ValueError) == (kind in USERS_FAULT)


def test_mismatch_says_field_both_values_and_remedy() -> None:
    assert str(TWO_PROBLEMS[0]) == "dtype: source has bfloat16, target has float16; use one"


@pytest.mark.parametrize("kind", [IncompatibleLayouts, IncompatiblePeer])
def test_incompatibility_carries_every_reason(kind: type[IncompatibleLayouts | IncompatiblePeer]) -> None:
    error = kind(list(TWO_PROBLEMS))
    assert error.problems == TWO_PROBLEMS
    assert str(error).splitlines() == [str(problem) for problem in TWO_PROBLEMS]


def test_refusal_carries_its_reason_code() -> None:
    error = TransferRefused("claimed", "offer 7 is taken")
    assert error.reason == "claimed" and str(error) == "offer 7 is taken (reason: claimed)"


@pytest.mark.parametrize("kind", errors.TransportErrorKind)
def test_transport_error_says_its_kind(kind: errors.TransportErrorKind) -> None:
    error = TransportError(kind, "read failed")
    assert error.kind is kind and str(error) == f"read failed ({kind.value})"
