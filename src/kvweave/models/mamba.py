"""Mamba 1 and Mamba 2: the states of a mixer, for models made of it alone and for the hybrids.

The inner width is never guessed as ``expand`` times the hidden size: Mamba 1 states it as ``intermediate_size``
(Falcon-Mamba-7B says ``expand`` 16 and means 2), Mamba 2 as heads times head size.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.spec import MambaSpec
from kvweave.models.decoder import Decoder, Module, refuse_mtp
from kvweave.models.reading import ConfigReader
from kvweave.models.setting import CacheSetting


@dataclass(frozen=True, slots=True)
class Mamba2Shape:
    """A Mamba 2 mixer's sizes, over the whole model."""

    num_heads: int
    head_size: int
    num_groups: int
    state_size: int
    conv_kernel: int

    def spec(self, reader: ConfigReader, setting: CacheSetting, ssm_dtype: str | None = None) -> MambaSpec:
        """The mixer's states; ``ssm_dtype`` is the family's or the file's for the recurrent one."""
        if self.num_heads % self.num_groups:
            raise reader.error(
                f"{self.num_heads} mamba heads are not a multiple of {self.num_groups} groups; correct one"
            )
        require_taps(reader, self.conv_kernel, setting)
        return MambaSpec.mamba2(
            self.num_heads,
            self.head_size,
            self.num_groups,
            self.state_size,
            self.conv_kernel,
            setting.conv_dtype,
            setting.ssm_dtype(ssm_dtype),
            setting.speculative_tokens,
        )


def mamba1(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Mamba 1, Falcon-Mamba among them."""
    refuse_mtp(reader, setting)
    spec = mamba1_spec(
        reader, setting, reader.count("intermediate_size"), reader.count("state_size"), reader.count("conv_kernel")
    )
    return Decoder(((Module("mamba", spec),),) * reader.layer_count())


def mamba1_spec(
    reader: ConfigReader, setting: CacheSetting, inner_size: int, state_size: int, conv_kernel: int
) -> MambaSpec:
    """The states of one Mamba 1 mixer of that inner width."""
    require_taps(reader, conv_kernel, setting)
    return MambaSpec.mamba1(
        inner_size, state_size, conv_kernel, setting.conv_dtype, setting.ssm_dtype(), setting.speculative_tokens
    )


def mamba2(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Mamba 2: heads, head size and groups are stated; an inner width that is stated too must be heads x head size."""
    refuse_mtp(reader, setting)
    shape = Mamba2Shape(
        reader.count("num_heads"),
        reader.count("head_dim"),
        reader.count("n_groups"),
        reader.count("state_size"),
        reader.count("conv_kernel"),
    )
    inner = reader.optional_count("intermediate_size")
    if inner is not None:
        require_inner_size(reader, shape, "intermediate_size", inner)
    return Decoder(((Module("mamba", shape.spec(reader, setting)),),) * reader.layer_count())


def require_inner_size(reader: ConfigReader, shape: Mamba2Shape, source: str, inner_size: int) -> None:
    """Raises unless ``inner_size``, which ``source`` gives, is heads times head size."""
    if shape.num_heads * shape.head_size != inner_size:
        raise reader.error(
            f"{shape.num_heads} mamba heads of {shape.head_size} make {shape.num_heads * shape.head_size}, "
            f"{source} makes {inner_size}; correct one"
        )


def require_taps(reader: ConfigReader, conv_kernel: int, setting: CacheSetting) -> None:
    """Raises when a convolution looks back at nothing: it would keep a state of no taps."""
    if conv_kernel - 1 + setting.speculative_tokens < 1:
        raise reader.error(f"the convolution kernel is {conv_kernel} and keeps no state; it must be at least 2")
