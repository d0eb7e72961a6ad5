"""Recurrent states: no token axis, one value per request.

transformers keeps two tensors a layer, whatever the kind::

    conv_states[0]        (1, channel, kernel)         sections along the channels: x, B, C or q, k, v
    recurrent_states[0]   (1, channel, state)          Mamba1
                          (1, head, dim, state)        Mamba2
                          (1, head, state, dim)        gated delta net and KDA: key axis first

The oldest of the ``kernel`` columns is never read again, because the next token's column comes behind: a conv array
has kernel - 1 taps, and a zero column takes the oldest one's place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kvweave.core.spec import MambaSpec, StatePart
from kvweave.engines.hf.captured import CapturedArray, CapturedCache
from kvweave.engines.hf.tensors import to_array, to_tensor

_STRAIGHT = frozenset({"mamba1", "mamba2"})


@dataclass(frozen=True, slots=True)
class StateBridge:
    """The conv sections and the recurrent state of one layer."""

    layer: str
    spec: MambaSpec

    def read(self, held: Any) -> Iterator[tuple[str, CapturedArray]]:
        """All parts after the last token."""
        conv = held.conv_states[0][0]
        first = 0
        for state in self._sections():
            channels, taps = (axis.size for axis in state.axes)
            yield state.part, CapturedArray(0, to_array(conv[first : first + channels, -taps:]))
            first += channels
        yield "ssm", CapturedArray(0, to_array(self._turned(held.recurrent_states[0][0])))

    def write(self, held: Any, captured: CapturedCache) -> None:
        """Fills a fresh layer's states."""
        sections = [to_tensor(captured.array(self.layer, state.part).data) for state in self._sections()]
        conv = torch.nn.functional.pad(torch.cat(sections), (1, 0)).unsqueeze(0)
        held.update_conv_state(conv, conv_kernel_size=conv.shape[-1])
        ssm = to_tensor(captured.array(self.layer, "ssm").data)
        held.update_recurrent_state(self._turned(ssm).unsqueeze(0).contiguous())

    def _sections(self) -> tuple[StatePart, ...]:
        return tuple(state for state in self.spec.states if state.part != "ssm")

    def _turned(self, ssm: torch.Tensor) -> torch.Tensor:
        return ssm if self.spec.mamba_type in _STRAIGHT else ssm.transpose(-1, -2)
