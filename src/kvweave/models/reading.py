"""Reading one value of a config.json: it is there and of the right kind, or the error names key, value and remedy.

Nothing is guessed here. A family that knows what a missing key means says so itself, with its source::

    value       ->  count("head_dim")          whole number of at least 1
    value|null  ->  optional_count(...)        None when the key is missing or null
    list        ->  numbers(...), words(...)   with the length that the family expects
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvweave.errors import ConfigurationError

LARGEST_COUNT = 2**31 - 1
LARGEST_LAYER_COUNT = 4096

RENAMED_LAYER_KINDS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
}
"""Older names of layer kinds and today's (transformers' ``remap_legacy_layer_types``)."""


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """The values of one config.json (or of its text part), and the model's name for messages."""

    values: Mapping[str, object]
    owner: str

    def states(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.values.get(key) is not None

    def count(self, *keys: str, at_most: int = LARGEST_COUNT) -> int:
        """A whole number of at least 1. Several keys are names of one thing: they must not contradict one another."""
        stated = [key for key in keys if self.states(key)]
        if not stated:
            raise self.missing(*keys)
        values = {key: self._whole_number(key, self.values[key], 1, at_most) for key in stated}
        if len(set(values.values())) > 1:
            raise self.error(
                f"{' and '.join(f'{key}={value}' for key, value in values.items())} name one thing; keep one"
            )
        return values[stated[0]]

    def optional_count(self, key: str) -> int | None:
        """A whole number of at least 1, or None when the key is missing or null."""
        return self.count(key) if self.states(key) else None

    def nullable_count(self, key: str) -> int | None:
        """A whole number of at least 1, or None when the file says null. The key itself must be there."""
        if key not in self.values:
            raise self.missing(key, remedy="state a number, or null where it is off")
        return self.optional_count(key)

    def number(self, key: str) -> int:
        """A whole number that may be 0."""
        if not self.states(key):
            raise self.missing(key)
        return self._whole_number(key, self.values[key], 0, LARGEST_COUNT)

    def layer_count(self) -> int:
        """``num_hidden_layers``."""
        return self.count("num_hidden_layers", at_most=LARGEST_LAYER_COUNT)

    def switch(self, key: str, otherwise: bool) -> bool:
        """True or false; ``otherwise`` is the family's documented value for a missing key."""
        value = self.values.get(key)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}; it must be true or false")
        return value

    def text(self, key: str) -> str | None:
        """A piece of text, or None when the key is missing or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{key} is {value!r}; it must be text")
        return value

    def section(self, key: str) -> ConfigReader:
        """The nested object of that key."""
        value = self.values.get(key)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, Mapping):
            raise self.error(f"{key} is {value!r}; it must be an object with the model's own keys")
        return ConfigReader(value, f"{self.owner}: {key}")

    def numbers(self, key: str, at_most: int, length: int | None = None) -> tuple[int, ...]:
        """A list of whole numbers from 0 to ``at_most``."""
        return tuple(
            self._whole_number(f"{key}[{place}]", value, 0, at_most)
            for place, value in enumerate(self._list(key, length))
        )

    def words(self, key: str, allowed: Sequence[str], length: int | None = None) -> tuple[str, ...]:
        """A list of the allowed words; older names of layer kinds count as today's."""
        words = [
            RENAMED_LAYER_KINDS.get(word, word) if isinstance(word, str) else word for word in self._list(key, length)
        ]
        for place, word in enumerate(words):
            if word not in allowed:
                raise self.error(f"{key}[{place}] is {word!r}; this family has {', '.join(allowed)}")
        return tuple(str(word) for word in words)

    def refuse(self, key: str, reason: str) -> None:
        """Raises when the key is there with a value that means something."""
        if self.values.get(key) not in (None, False, []):
            raise self.error(f"{key} is {self.values[key]!r}; {reason}")

    def missing(self, *keys: str, remedy: str = "add it from the model's published config.json") -> ConfigurationError:
        """The error for a key that the family needs and the file lacks."""
        name = " (or ".join(keys) + ")" * (len(keys) - 1)
        null = [key for key in keys if key in self.values]
        return self.error(f"{name} is {'null' if null else 'missing'}; {remedy}")

    def error(self, message: str) -> ConfigurationError:
        """An error that begins with the model's name."""
        return ConfigurationError(f"{self.owner}: {message}")

    def _list(self, key: str, length: int | None) -> Sequence[object]:
        value = self.values.get(key)
        if value is None:
            raise self.missing(key)
        if not isinstance(value, list | tuple):
            raise self.error(f"{key} is {value!r}; it must be a list")
        if length is not None and len(value) != length:
            raise self.error(f"{key} has {len(value)} entries for {length} layers; state one per layer")
        return value

    def _whole_number(self, key: str, value: object, at_least: int, at_most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.error(f"{key} is {value!r}; it must be a whole number from {at_least} to {at_most}")
        return value
