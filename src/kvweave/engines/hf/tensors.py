"""Between torch tensors of a transformers cache (batch of one) and numpy arrays in logical axis order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy of the tensor in C order; transformers changes some of its states in place."""
    return np.array(tensor.detach().numpy(), order="C", copy=True)


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    """A tensor of its own, of the same shape."""
    return torch.from_numpy(np.array(array, order="C", copy=True))


def heads_first(rows: torch.Tensor, padding: int) -> torch.Tensor:
    """(token, head, dim) as transformers keeps it, (1, head, padding + token, dim), with zeros where padded."""
    held = rows.transpose(0, 1).unsqueeze(0)
    return torch.nn.functional.pad(held, (0, 0, padding, 0)).contiguous()
