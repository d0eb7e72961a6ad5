from __future__ import annotations

import pytest
import torch

from kvweave.core.cache_config import MemoryKind
from kvweave.core.layout import Region
from kvweave.errors import LayoutError
from kvweave.integrations.vllm.tensor_view import TensorView, merge_regions, place_in

NAME = "model.layers.0.self_attn.attn"


def test_a_view_is_the_tensors_memory_in_bytes() -> None:
    view = TensorView.of(NAME, torch.zeros(4, 2, 16, 128, dtype=torch.bfloat16).transpose(1, 2))
    assert (view.shape, view.strides) == ((4, 16, 2, 128), (8192, 256, 4096, 2))
    assert (view.content_bytes, view.memory, view.device) == (256, MemoryKind.DRAM, 0)


def test_a_tensor_of_another_shape_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"a cache of shape \(64,\), wanted block, head, state, content"):
        TensorView.of(NAME, torch.zeros(64))


def test_contents_that_lie_apart_are_refused() -> None:
    with pytest.raises(LayoutError, match="content elements lie 8 bytes apart, wanted 4"):
        TensorView.of(NAME, torch.zeros(4, 2, 16, 128)[..., ::2])


def test_blocks_that_do_not_fit_the_configuration_are_refused() -> None:
    with pytest.raises(LayoutError, match="8 blocks in the tensor, 3 in vLLM's configuration"):
        TensorView.of(NAME, torch.zeros(8, 2, 16, 128)).kernel_blocks(NAME, 3)


def test_views_of_one_allocation_are_one_region() -> None:
    memory = torch.zeros(2, 8, 2, 16, 128)
    views = [TensorView.of(NAME, layer) for layer in memory]
    (region,) = merge_regions(views)
    assert (region.address, region.nbytes) == (memory.data_ptr(), memory.nbytes)
    assert place_in((region,), views[1]) == (0, views[1].address - region.address)


def test_allocations_apart_stay_apart() -> None:
    tensors = [torch.zeros(4, 1, 16, 8) for _ in range(2)]
    views = [TensorView.of(NAME, tensor) for tensor in tensors]
    regions = merge_regions(views)
    assert len(regions) == 2
    assert {place_in(regions, view)[1] for view in views} == {0}


def test_allocations_that_overlap_are_one_region() -> None:
    spans = [(4096, 100), (4150, 200), (8192, 10)]
    views = [TensorView(start, (1, 1, 1, 1), (1, 1, 1, 1), 1, start, nbytes) for start, nbytes in spans]
    assert merge_regions(views) == (Region(4096, 254), Region(8192, 10))


def test_a_tensor_outside_every_allocation_is_refused() -> None:
    view = TensorView(100, (1, 1, 1, 1), (1, 1, 1, 1), 1, 100, 1)
    with pytest.raises(LayoutError, match="lies in none of the registered allocations"):
        place_in((Region(4096, 10),), view)
