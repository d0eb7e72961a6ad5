"""What a load leaves unwritten in its blocks is zero, whatever the memory held before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.integrations.vllm.layers import Heads, Side
from tests.integrations.vllm.scheduling import Two, check_settled, prompt_of, two_instances
from tests.integrations.vllm.test_states import mamba2, whole_hybrid

ATTENTION = "model.layers.1.self_attn.attn"
BLOCK = 64
SIDE = Side(1, block_size=BLOCK)


def dirty_hybrid(folder: Path):
    """A pair of a model with a state beside attention, whose decode memory holds what an earlier request left."""
    heads = Heads(2, head_size=64)
    state, known = mamba2(1)
    padded = replace(state, padded=int(heads.spec(SIDE, 0).page_size_bytes))
    model = {"model.layers.0.mixer": padded, ATTENTION: heads}
    options = {"prefix_caching": False}
    return two_instances(folder, model, SIDE, SIDE, options, whole_hybrid(known), **options)


def load(two: Two, length: int) -> None:
    two.decode.engine.memory(0).fill_(127)
    two.transfer(prompt_of(length))
    two.decode.run_until(lambda: "wanted" in two.decode.reported("loaded"))


@pytest.mark.parametrize("length", [40, 70, 130], ids=["one block", "two", "three"])
def test_the_rest_of_the_last_block_is_zero(config_folder: Path, length: int) -> None:
    with dirty_hybrid(config_folder) as two:
        load(two, length)
        assert two.decode.wrong_bytes("wanted", 0, length - 1) == 0
        (table,) = [ids for ids in two.decode.blocks_of("wanted") if len(ids) == -(-(length - 1) // BLOCK)][-1:]
        last = two.decode.engine.tensors[0][ATTENTION][table[-1]]
        assert int(last[:, (length - 1) % BLOCK :].count_nonzero()) == 0


def test_full_blocks_need_no_zeroing(config_folder: Path) -> None:
    with dirty_hybrid(config_folder) as two:
        load(two, 2 * BLOCK + 1)
        assert two.decode.wrong_bytes("wanted", 0, 2 * BLOCK) == 0


def test_an_abort_of_a_load_that_waits_for_its_zeroing_frees_everything(config_folder: Path) -> None:
    with dirty_hybrid(config_folder) as two:
        free = two.decode.free_blocks
        request = two.transfer(prompt_of(70))
        two.decode.scheduler.schedule()
        two.decode.scheduler.finish_requests("wanted", request.status.FINISHED_ABORTED)
        check_settled(two, free)
