"""From a preset's name, a config.json or a folder with one, to the model's cache and its description."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvweave.core.model import ModelCache
from kvweave.errors import ConfigurationError
from kvweave.models.catalogue import preset, presets
from kvweave.models.decoder import assemble
from kvweave.models.description import ModelDescription, describe_model
from kvweave.models.reading import ConfigReader
from kvweave.models.registry import architecture_of, find_family, reader_of
from kvweave.models.setting import CacheOptions, CacheSetting, dtype_of_file


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration and where it came from."""

    name: str
    config: Mapping[str, object]
    verified: str | None = None
    note: str = ""


def load(
    what: str | Path,
    *,
    dtype: str | None = None,
    cache_dtype: str | None = None,
    conv_dtype: str | None = None,
    ssm_dtype: str | None = None,
    speculative_tokens: int = 0,
    mtp: bool = False,
) -> ModelCache:
    """What a model caches.

    ``what`` is a preset such as "deepseek-v3" (text that is a preset's name always means the preset), a config.json,
    or a folder with one. The keywords are those of ``CacheOptions``. Raises ``ConfigurationError`` when there is no
    such thing, when its architecture is not known, and when a value is missing or wrong.

    >>> load("llama-3.1-8b").bytes_per_token()
    131072.0
    """
    options = CacheOptions(dtype, cache_dtype, conv_dtype, ssm_dtype, speculative_tokens, mtp)
    source = find_source(what)
    return from_config(source.config, source.name, options)


def from_config(config: Mapping[str, object], name: str, options: CacheOptions | None = None) -> ModelCache:
    """What the model of that configuration (the content of a config.json) caches; ``name`` stands in messages."""
    family = find_family(config, name)
    reader = reader_of(family, config, name)
    setting = CacheSetting.resolve(options or CacheOptions(), _stated_dtype(config, reader, name))
    return assemble(name, family.build(reader, setting))


def describe(what: str | Path, options: CacheOptions | None = None) -> ModelDescription:
    """The record that ``kvweave models`` shows for a preset, a config.json or a folder with one."""
    source = find_source(what)
    family = find_family(source.config, source.name)
    reader = reader_of(family, source.config, source.name)
    stated = (options is not None and options.dtype) or _stated_dtype(source.config, reader, source.name)
    return describe_model(
        from_config(source.config, source.name, options),
        family.name,
        architecture_of(source.config, source.name),
        source.verified,
        not stated,
        source.note,
    )


def find_source(what: str | Path) -> Source:
    """The configuration that ``what`` names."""
    if isinstance(what, str) and what.lower() in presets():
        found = preset(what.lower())
        return Source(found.name, found.config, found.verified, found.note)
    try:
        return _source_at(Path(what))
    except OSError as error:
        raise ConfigurationError(f"model: {str(what)[:200]!r} cannot be opened ({error.strerror}); check it") from None


def _source_at(path: Path) -> Source:
    if path.is_file():
        named = path.resolve().parent.name if path.name == "config.json" else path.stem
        return Source(named or path.stem, read_config(path))
    if (path / "config.json").is_file():
        return Source(path.resolve().name or str(path), read_config(path / "config.json"))
    if path.is_dir():
        raise ConfigurationError(f"model: folder {str(path)!r} has no config.json; name one that has, or a preset")
    what = str(path)
    close = difflib.get_close_matches(what.lower(), presets(), n=3, cutoff=0.4)
    meant = f"; close presets: {', '.join(close)}" if close else ""
    raise ConfigurationError(
        f"model: {what!r} is no preset, file or folder{meant}; "
        "use a preset (kvweave models lists them) or a config.json's path"
    )


def read_config(path: Path) -> Mapping[str, object]:
    """The object in a config.json; ``ConfigurationError`` when the file has none."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"model: {str(path)!r} is no JSON ({error}); name a Hugging Face config.json"
        ) from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"model: {str(path)!r} holds a {type(value).__name__}; a config.json holds an object")
    return value


def _stated_dtype(config: Mapping[str, object], reader: ConfigReader, name: str) -> str | None:
    return dtype_of_file(reader) or dtype_of_file(ConfigReader(config, name))
