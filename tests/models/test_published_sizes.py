"""Sizes that were published for these models, recomputed from the presets: one layer or group more would show."""

import pytest

from kvweave.models import load

KIB_PER_TOKEN = {
    "falcon-h1-7b": 44, "nemotron-h-8b": 16, "granite-4.0-h-small": 16, "jamba-1.5-mini": 16, "qwen3-next-80b-a3b": 24,
    "kimi-linear-48b-a3b": 7.88, "gemma-2-9b": 336, "gemma-3-27b": 496, "gpt-oss-20b": 48, "gpt-oss-120b": 72,
    "deepseek-v2-lite": 30.4, "deepseek-v3": 68.6, "kimi-k2-instruct": 68.6, "deepseek-r1": 68.6,
}  # fmt: skip
STATE_MIB = {
    "falcon-h1-7b": 66.90, "nemotron-h-8b": 49.41, "granite-4.0-h-small": 73.74, "jamba-1.5-mini": 8.31,
    "qwen3-next-80b-a3b": 37.69, "kimi-linear-48b-a3b": 21.41,
}  # fmt: skip


@pytest.mark.parametrize(("preset", "kib"), KIB_PER_TOKEN.items(), ids=KIB_PER_TOKEN)
def test_attention_bytes_per_token_in_bfloat16_are_the_published_ones(preset, kib):
    digits = len(str(kib).partition(".")[2])
    assert round(load(preset, dtype="bfloat16").bytes_per_token() / 1024, digits) == kib


@pytest.mark.parametrize(("preset", "mib"), STATE_MIB.items(), ids=STATE_MIB)
def test_state_bytes_per_request_in_bfloat16_are_the_published_ones(preset, mib):
    model = load(preset, dtype="bfloat16", ssm_dtype="bfloat16")
    assert round(model.bytes_per_request() / 2**20, 2) == mib


def test_the_recurrent_part_of_nemotron_h_is_float32_unless_stated():
    stated, default = load("nemotron-h-8b", ssm_dtype="bfloat16"), load("nemotron-h-8b")
    recurrent = 24 * 128 * 64 * 128 * 2
    assert default.bytes_per_request() - stated.bytes_per_request() == recurrent
