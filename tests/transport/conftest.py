"""Plain asserts of the contract suite explain themselves."""

import pytest

pytest.register_assert_rewrite("kvweave.testing.transport_contract")
