"""Prompts as token ids: many lengths, some with shared beginnings, the same in every run."""

from __future__ import annotations

import random

VOCABULARY = 250
LENGTHS = (1, 2, 3, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 400, 513, 777, 1200, 1500)


def prompt_of(length: int, seed: int = 0, shared: int = 0) -> list[int]:
    """One prompt; ``shared`` tokens at its beginning are those of every other prompt."""
    common, own = random.Random(7), random.Random(1000 * length + seed)
    tokens = [common.randrange(10, VOCABULARY) for _ in range(min(shared, length))]
    return tokens + [own.randrange(10, VOCABULARY) for _ in range(length - len(tokens))]


def sweep_prompts() -> list[list[int]]:
    """Twenty prompts of 1 to 1,500 tokens, every second one beginning like the others."""
    return [prompt_of(length, shared=(number % 2) * 200) for number, length in enumerate(LENGTHS)]


def edge_lengths(window: int, block_sizes: tuple[int, ...], most: int = 1500) -> list[int]:
    """Prompt lengths at which the window's edge meets a block's, ``(N - window + 1) % block == 0``, and neighbours.

    >>> edge_lengths(128, (64,), 260)
    [126, 127, 128, 190, 191, 192, 254, 255, 256]
    """
    meeting = {edge + window - 1 for block in block_sizes for edge in range(0, most, block)}
    lengths = {length + near for length in meeting for near in (-1, 0, 1)}
    return sorted(length for length in lengths if 0 < length <= most)
