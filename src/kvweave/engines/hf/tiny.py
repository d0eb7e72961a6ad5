"""Builds tiny random models whose greedy tokens depend on every part of their cache.

A family's model is the same on every machine: seeded, float32, byte tokens. Its weights are drawn wider than a
trained model's, so that logits are far apart and no token repeats for ever; a wrong cache then shows in the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from kvweave.engines.hf.families import FAMILIES
from kvweave.errors import ConfigurationError

VOCABULARY = 320
"""Entries of a tiny model's vocabulary: the bytes, and room for special tokens."""

_SEED = 20
_WEIGHT_SCALE = 0.25


def tiny_model(family: str, folder: str | Path) -> Path:
    """Saves the family's tiny model and a byte tokenizer to ``folder``, which is made if need be; returns the folder.

    Raises ``ConfigurationError`` for a family that is not in ``FAMILIES``.
    """
    if family not in FAMILIES:
        raise ConfigurationError(f"tiny family: {family!r} is not known; use one of {', '.join(FAMILIES)}")
    chosen = FAMILIES[family]
    return save_random_model(chosen.model_type, chosen.values, folder)


def save_random_model(model_type: str, values: Mapping[str, Any], folder: str | Path, seed: int = _SEED) -> Path:
    """Saves a random model of these config values and a byte tokenizer to ``folder``; returns the folder."""
    config = AutoConfig.for_model(
        model_type,
        vocab_size=VOCABULARY,
        initializer_range=_WEIGHT_SCALE,
        tie_word_embeddings=False,
        bos_token_id=VOCABULARY - 3,
        eos_token_id=VOCABULARY - 2,
        pad_token_id=VOCABULARY - 1,
        **values,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    network.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return Path(folder)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, in the tiny models' vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: token for token, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
