"""Digests of prompts: equal for the same request on both sides, different for everything that changes its cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvweave.integrations.vllm.prompts import is_of, prompt_digest, sign_params

TOKENS = list(range(40))
EMBEDDINGS = torch.arange(40 * 8, dtype=torch.bfloat16).reshape(40, 8)


def request(
    tokens: Any = TOKENS, lora: Path | None = None, media: tuple[tuple[str, str, int], ...] = (),
    embeddings: Any = None, places: list[bool] | None = None,
) -> Any:  # fmt: skip
    features = [
        SimpleNamespace(modality=kind, identifier=name, mm_position=SimpleNamespace(offset=offset, length=4))
        for kind, name, offset in media
    ]
    return SimpleNamespace(
        prompt_token_ids=tokens, num_prompt_tokens=40, mm_features=features, prompt_embeds=embeddings,
        prompt_is_token_ids=places,
        lora_request=None if lora is None else SimpleNamespace(lora_name=lora.name, lora_path=str(lora)),
    )  # fmt: skip


def adapter(folder: Path, weights: bytes = b"weights", alpha: int = 8) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_model.bin").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"lora_alpha": alpha}))
    return folder


@pytest.mark.parametrize("embeddings", [None, EMBEDDINGS], ids=["tokens", "embeddings"])
def test_the_cut_prompt_of_the_prefill_side_has_the_same_digest(embeddings: Any) -> None:
    whole = request(embeddings=embeddings)
    cut = request(TOKENS[:-1], embeddings=None if embeddings is None else embeddings[:-1])
    assert prompt_digest(cut, 39) == prompt_digest(whole, 39)


@pytest.mark.parametrize(
    "other",
    [
        request([*TOKENS[:20], 99, *TOKENS[21:]]), request(media=(("image", "picture", 3),)), request(TOKENS[::-1]),
        request(None, embeddings=EMBEDDINGS), request(embeddings=EMBEDDINGS, places=[True] * 20 + [False] * 20),
    ],
    ids=["token", "picture", "order", "embeddings", "mixed"],
)  # fmt: skip
def test_what_changes_the_cache_changes_the_digest(other: Any) -> None:
    assert prompt_digest(other, 39) != prompt_digest(request(), 39)


@pytest.mark.parametrize(
    "media",
    [("image", "other", 3), ("audio", "picture", 3), ("image", "picture", 4)],
    ids=["another picture", "another kind", "another place"],
)
def test_the_same_tokens_with_other_media(media: tuple[str, str, int]) -> None:
    one, other = request(media=(("image", "picture", 3),)), request(media=(media,))
    assert prompt_digest(one, 39) != prompt_digest(other, 39)


@pytest.mark.parametrize(
    "other",
    [EMBEDDINGS + 1, EMBEDDINGS.float(), EMBEDDINGS.reshape(40, 8).flip(0)],
    ids=["values", "type", "order"],
)
def test_other_embeddings(other: Any) -> None:
    one = prompt_digest(request(None, embeddings=EMBEDDINGS), 39)
    assert one != prompt_digest(request(None, embeddings=other), 39)


def test_what_comes_behind_the_offer_does_not_matter() -> None:
    other = request([*TOKENS[:39], 99], media=(("image", "picture", 39),))
    assert prompt_digest(other, 39) == prompt_digest(request(), 39)


def test_the_same_adapter_in_another_folder(tmp_path: Path) -> None:
    one, other = adapter(tmp_path / "prefill" / "sql"), adapter(tmp_path / "decode" / "sql")
    assert prompt_digest(request(lora=one), 39) == prompt_digest(request(lora=other), 39)
    assert prompt_digest(request(lora=one), 39) != prompt_digest(request(), 39)


@pytest.mark.parametrize("change", [{"weights": b"WEIGHTS"}, {"alpha": 16}], ids=["weights", "settings"])
def test_another_adapter_of_the_same_name(tmp_path: Path, change: dict[str, Any]) -> None:
    one, other = adapter(tmp_path / "prefill" / "sql"), adapter(tmp_path / "decode" / "sql", **change)
    assert prompt_digest(request(lora=one), 39) != prompt_digest(request(lora=other), 39)


def test_an_adapter_that_is_replaced_where_it_lies(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "sql")
    before = prompt_digest(request(lora=folder), 39)
    (folder / "adapter_model.bin").write_bytes(b"WEIGHTS")
    os.utime(folder / "adapter_model.bin", (9e9, 9e9))
    assert prompt_digest(request(lora=folder), 39) != before


def signed(one: Any, num_tokens: int = 39) -> dict[str, Any]:
    return sign_params({"remote_port": 1, "kvweave": {"version": 1}}, one, num_tokens)


def test_an_offer_is_of_its_own_prompt_alone() -> None:
    params = signed(request(TOKENS[:-1]))
    assert params["kvweave"]["version"] == params["remote_port"] == 1
    assert is_of(params, request(), 39)
    assert not is_of(params, request(TOKENS[::-1]), 39)


def test_an_offer_never_holds_the_last_token() -> None:
    assert not is_of(signed(request(), 40), request(), 40)


def test_an_offer_without_a_digest_is_of_no_prompt() -> None:
    assert not is_of({"kvweave": {}}, request(), 39)
