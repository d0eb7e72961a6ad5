"""Tensors and arrays share no memory, and heads go to where transformers has them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the embedded engine needs the extra hf")
tensors = pytest.importorskip("kvweave.engines.hf.tensors")


def test_an_array_is_a_copy_in_c_order():
    tensor = torch.arange(6.0).reshape(2, 3).T
    array = tensors.to_array(tensor)
    tensor.zero_()
    assert array.flags.c_contiguous
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_tensor_is_a_copy():
    array = np.arange(6.0).reshape(2, 3)
    tensor = tensors.to_tensor(array.T)
    array[:] = 0
    assert tensor.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("padding", [0, 2])
def test_heads_come_before_padded_tokens(padding):
    rows = torch.arange(1.0, 25.0).reshape(4, 2, 3)
    held = tensors.heads_first(rows, padding)
    assert held.shape == (1, 2, padding + 4, 3)
    assert not held[:, :, :padding].any()
    assert (held[0, 1, padding:] == rows[:, 1]).all()
