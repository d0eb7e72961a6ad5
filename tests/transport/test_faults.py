from __future__ import annotations

import pytest

from kvweave.errors import LocalProtocolError
from kvweave.transport.faults import Fault, scripted_faults


@pytest.mark.parametrize(
    "wrong",
    [{"delay": -1}, {"late_write": -1}, {"copied": 1.5}, {"copied": -0.1}, {"copied": 0.5}],
    ids=["delay", "late write", "more than all", "less than nothing", "a part without an error"],
)
def test_a_fault_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LocalProtocolError, match="fault"):
        Fault(**wrong)


def test_a_script_gives_no_faults_once_it_is_over() -> None:
    faults = scripted_faults([Fault(delay=1)])
    assert [faults(), faults(), faults()] == [Fault(delay=1), Fault(), Fault()]
