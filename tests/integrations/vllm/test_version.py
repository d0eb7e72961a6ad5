from __future__ import annotations

import pytest

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm.version import TESTED_VERSION, require_known_version


def test_the_installed_version_is_known() -> None:
    assert require_known_version() == TESTED_VERSION


@pytest.mark.parametrize("version", ["0.31.2", "0.33.0", "1.0.0", "dev"])
def test_another_version_is_refused_by_name(version: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"version {version} is not known .* knows 0\.32"):
        require_known_version(version)
