"""Where a model's configuration is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvweave.errors import ConfigurationError
from kvweave.serving.checkpoint import find_configuration


def test_a_folder_s_configuration_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_configuration(str(tmp_path)) == tmp_path / "config.json"


def test_a_single_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    assert find_configuration(str(tmp_path / "model.gguf")) is None


def test_a_repository_that_was_never_fetched_has_none() -> None:
    assert find_configuration("nobody/such-a-model") is None


def test_a_repository_in_the_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hf brings it")
    repository = tmp_path / "models--somebody--something"
    snapshot = repository / "snapshots" / "1a2b"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("1a2b")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert find_configuration("somebody/something") == snapshot / "config.json"


@pytest.mark.parametrize(
    ("model", "named"),
    [("llama-3.1-8b", "is a preset, which has no weights"), (".", "has no config.json")],
    ids=["preset", "folder"],
)
def test_what_cannot_be_served_is_refused(
    model: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"model: '{model}' {named}|folder '{model}' {named}"):
        find_configuration(model)
