"""Where a model's configuration lies on this machine, if it does: a folder, or Hugging Face's cache."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from kvweave.errors import ConfigurationError
from kvweave.models import presets


def find_configuration(model: str) -> Path | None:
    """The ``config.json`` of a folder or of a cached repository; None where there is none yet.

    Raises ``ConfigurationError`` for a preset, which has no weights, and for a folder without configuration.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder / "config.json"
    if folder.is_file():
        return None
    if folder.is_dir():
        raise ConfigurationError(f"model: folder {model!r} has no config.json; name one that has")
    if model.lower() in presets():
        raise ConfigurationError(
            f"model: {model!r} is a preset, which has no weights; name a folder, or a repository such as "
            "Qwen/Qwen3-0.6B"
        )
    return _cached(model)


def _cached(repository: str) -> Path | None:
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "config.json")
    except HFValidationError as error:
        raise ConfigurationError(f"model: {repository!r} is no folder and no repository's name ({error})") from None
    return Path(found) if isinstance(found, str) else None
