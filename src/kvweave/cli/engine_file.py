"""The YAML file of an engine: one flat mapping from key to value, each key once.

PyYAML keeps the last of two equal keys; here a repeated key is an error, like everything else that is not a mapping of
names.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from kvweave.errors import ConfigurationError


class _PairLoader(yaml.SafeLoader):
    """Safe loading, with the outermost mapping as pairs, so that none gets lost."""


def read_engine_file(path: Path) -> list[tuple[str, object]]:
    """The file's keys and values in order; raises ``ConfigurationError`` for a file that has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(
            f"{path}: cannot be read ({reason}); name a YAML file that describes an engine"
        ) from None
    try:
        return _pairs(path, text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        where = " ".join(str(error).split()) or "too deeply nested"
        raise ConfigurationError(f"{path}: no YAML ({where}); write one 'key: value' a line") from None


def _pairs(path: Path, text: str) -> list[tuple[str, object]]:
    loader = _PairLoader(text)
    try:
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode) or not node.value:
            raise ConfigurationError(f"{path}: holds no mapping; write one 'key: value' a line, such as tp: 4")
        pairs = [
            (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
            for key, value in node.value
        ]
    finally:
        loader.dispose()
    return [(str(key), value) for key, value in pairs]
