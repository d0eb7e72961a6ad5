"""The byte oracle: it names planted faults by layer, token and rank, and finds none between real servers."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.vllm.live_bytes import check_bytes, compare_records
from tests.e2e.vllm.live_slices import WrongSize, heads_of
from tests.e2e.vllm.saved_bytes import HYBRID_MODEL, LATENT_MODEL, STATE_MODEL, load, plant, save_pair, save_side

SIZES = [(1, 1), (2, 1), (1, 2), (2, 2)]
LAYER = "model.layers.0.self_attn"
SECOND = "model.layers.1.self_attn"


@pytest.fixture
def kernel() -> None:
    """vLLM's kernel, which says what lies where in a page of K and V."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("asks vLLM's own kernel, which is not installed here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("vllm._custom_ops")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("config", [LATENT_MODEL, STATE_MODEL], ids=["latents", "states"])
def test_a_faultless_delivery_is_equal(config: Mapping[str, Any], sizes: tuple[int, int], tmp_path: Path) -> None:
    save_pair(tmp_path, config, sizes)
    report = compare_records(config, tmp_path)
    assert report.ok, report
    once = 2 * 70 * 16 if config is LATENT_MODEL else 3 * 24 * 2 + 4 * 8 * 4
    replicas = sizes[1] if config is LATENT_MODEL else 1
    assert report.compared == once * replicas


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.usefixtures("kernel")
def test_keys_and_values_are_found_in_the_kernels_tiles(sizes: tuple[int, int], tmp_path: Path) -> None:
    save_pair(tmp_path, HYBRID_MODEL, sizes)
    assert compare_records(HYBRID_MODEL, tmp_path).ok


def test_a_swapped_block_is_named_by_layer_token_and_rank(tmp_path: Path) -> None:
    save_pair(tmp_path, LATENT_MODEL, (2, 2))
    facts, rows = load(tmp_path, "delivery", 1)
    rows[SECOND][[0, 1]] = rows[SECOND][[1, 0]]
    plant(tmp_path, "delivery", 1, facts, rows)
    report = compare_records(LATENT_MODEL, tmp_path)
    assert {(found.rank, found.layer, found.part) for found in report.differences} == {("pp0 tp1", 1, "latent")}
    assert [found.token for found in report.differences] == list(range(64))
    assert "pp0 tp1: layer 1 latent head 0, token 0:" in str(report)


def test_one_wrong_byte_is_named(tmp_path: Path) -> None:
    save_pair(tmp_path, LATENT_MODEL, (1, 1))
    facts, rows = load(tmp_path, "delivery", 0)
    rows[LAYER][2, 0, 0, 5, 3] ^= 1
    plant(tmp_path, "delivery", 0, facts, rows)
    (found,) = compare_records(LATENT_MODEL, tmp_path).differences
    assert (found.layer, found.token, found.nbytes) == (0, 69, 1)


def test_a_state_of_the_wrong_head_is_named(tmp_path: Path) -> None:
    save_pair(tmp_path, STATE_MODEL, (2, 1))
    facts, rows = load(tmp_path, "delivery", 0)
    states = rows[LAYER].reshape(-1)[3 * 24 * 2 :].reshape(4, -1)
    states[[1, 2]] = states[[2, 1]]
    plant(tmp_path, "delivery", 0, facts, rows)
    report = compare_records(STATE_MODEL, tmp_path)
    assert {(found.part, found.head, found.token) for found in report.differences} == {
        ("ssm", 1, None),
        ("ssm", 2, None),
    }


def test_a_convolution_cut_in_one_piece_is_named(tmp_path: Path) -> None:
    """One contiguous half of all channels for each rank, which is what a cut without sections would bring."""
    save_pair(tmp_path, STATE_MODEL, (1, 2))
    _, whole = load(tmp_path, "offer", 0)
    conv = whole[LAYER].reshape(-1)[: 3 * 24 * 2].reshape(3, 48)
    for tp in range(2):
        facts, rows = load(tmp_path, "delivery", tp)
        rows[LAYER].reshape(-1)[: 3 * 12 * 2] = conv[:, tp * 24 : (tp + 1) * 24].reshape(-1)
        plant(tmp_path, "delivery", tp, facts, rows)
    report = compare_records(STATE_MODEL, tmp_path)
    assert {(found.rank, found.part) for found in report.differences} == {
        ("pp0 tp0", "conv.k"), ("pp0 tp0", "conv.v"), ("pp0 tp1", "conv.q"), ("pp0 tp1", "conv.k"),
    }  # fmt: skip


@pytest.mark.usefixtures("kernel")
def test_keys_of_the_wrong_head_are_named(tmp_path: Path) -> None:
    save_pair(tmp_path, HYBRID_MODEL, (1, 2))
    (facts, rows), (_, other) = load(tmp_path, "delivery", 0), load(tmp_path, "delivery", 1)
    plant(tmp_path, "delivery", 0, facts, rows | {SECOND: other[SECOND]})
    report = compare_records(HYBRID_MODEL, tmp_path)
    assert {(found.rank, found.layer, found.part) for found in report.differences} == {
        ("pp0 tp0", 1, "k"), ("pp0 tp0", 1, "v"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stop": 69}, "pp0 tp0 has 69 tokens after its load, wanted 70"),
        ({"tp_size": 2}, "delivered, but without a record of ranks [(0, 1)]"),
        ({"layers": []}, "0 layers delivered, the model has 2"),
    ],
    ids=["a token short", "a rank missing", "layers missing"],
)
def test_what_was_not_saved_is_no_success(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_pair(tmp_path, LATENT_MODEL, (1, 1))
    facts, rows = load(tmp_path, "delivery", 0)
    plant(tmp_path, "delivery", 0, facts | change, rows)
    report = compare_records(LATENT_MODEL, tmp_path)
    assert not report.ok
    assert any(message in problem for problem in report.problems), report


def test_a_state_of_another_token_is_no_success(tmp_path: Path) -> None:
    save_pair(tmp_path, STATE_MODEL, (1, 1))
    facts, rows = load(tmp_path, "offer", 0)
    plant(tmp_path, "offer", 0, facts | {"stop": 71}, rows)
    assert "offers the state after 71 tokens, wanted 70" in str(compare_records(STATE_MODEL, tmp_path))


def test_zeros_on_both_sides_are_no_success(tmp_path: Path) -> None:
    save_pair(tmp_path, LATENT_MODEL, (1, 1))
    for kind in ("offer", "delivery"):
        facts, rows = load(tmp_path, kind, 0)
        plant(tmp_path, kind, 0, facts, {name: np.zeros_like(row) for name, row in rows.items()})
    assert "layer 0 latent head 0 holds zeros only" in str(compare_records(LATENT_MODEL, tmp_path))


def test_a_delivery_without_its_offer_is_no_success(tmp_path: Path) -> None:
    save_side(tmp_path, LATENT_MODEL, "delivery", 1)
    report = compare_records(LATENT_MODEL, tmp_path)
    assert report.wrong == report.compared > 0
    assert not report.ok


def test_nothing_compared_is_no_success(tmp_path: Path) -> None:
    save_side(tmp_path, LATENT_MODEL, "offer", 1)
    assert not compare_records(LATENT_MODEL, tmp_path).ok


def test_tensors_of_another_size_are_refused(tmp_path: Path) -> None:
    save_pair(tmp_path, STATE_MODEL, (1, 1))
    with pytest.raises(WrongSize, match=r"states \[\[3, 24\], \[4, 2, 4\]\] in vLLM, but \[\[3, 32\]"):
        compare_records(STATE_MODEL | {"linear_num_key_heads": 3}, tmp_path)


def test_heads_of_a_rank() -> None:
    assert [list(heads_of(2, 4, rank)) for rank in range(4)] == [[0], [0], [1], [1]]
    assert [list(heads_of(6, 2, rank)) for rank in range(2)] == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("shapes", [("tp=1", "tp=1"), ("tp=2", "tp=1"), ("tp=1", "tp=2")], ids=">".join)
@pytest.mark.parametrize("model", ["deepseek-v2", "qwen3-next"])
def test_servers_deliver_the_bytes_that_were_offered(
    model: str, shapes: tuple[str, str], models: Path, tmp_path: Path
) -> None:
    report = check_bytes(model, *shapes, tmp_path, models)
    assert report.ok, report
