from importlib import resources

import pytest

from kvweave.errors import ConfigurationError
from kvweave.models import load, preset, presets
from kvweave.models.registry import FAMILIES, find_family

ONE_SOURCE = {"deepseek-v4-pro", "qwen3.5-9b", "qwen3.5-35b-a3b", "nemotron-h-56b", "jamba-v0.1"}


def test_there_are_presets_of_every_family():
    assert len(presets()) >= 40
    names = {find_family(preset(name).config, name).name for name in presets()}
    assert names == {family.name for family in FAMILIES} - {"Qwen2-MoE"}


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_caches_something(name):
    model = load(name)
    assert model.name == name == preset(name).title.lower()
    assert model.bytes_per_token() + model.bytes_per_request() > 0


def test_presets_that_rest_on_one_source_say_so():
    assert {name for name in presets() if preset(name).verified == "one"} == ONE_SOURCE
    assert {preset(name).verified for name in presets()} == {"one", "two"}


@pytest.mark.parametrize("name", presets())
def test_every_presets_sources_are_written_down(name):
    sources = resources.files("kvweave.models").joinpath("presets", "SOURCES.md").read_text(encoding="utf-8")
    row = next(line for line in sources.splitlines() if line.startswith("|") and name in line.split("|")[1])
    assert ("**one**" in row) == (name in ONE_SOURCE)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"preset: 'gpt-9' is not known; use one of .*deepseek-v3"):
        preset("gpt-9")
