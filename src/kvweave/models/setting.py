"""What the caller states about an engine's cache, and the dtypes that follow from it and from the file.

vLLM's rules, in its names: attention caches have ``cache_dtype`` and states ``mamba_cache_dtype``, both the model's
dtype unless stated; the recurrent part has ``mamba_ssm_cache_dtype``, unless stated the conv part's, except where a
family says otherwise (``model_executor/models/config.py``, ``MambaStateDtypeCalculator``).
"""

from __future__ import annotations

from dataclasses import dataclass

from kvweave.core.array import DType
from kvweave.errors import ConfigurationError
from kvweave.models.reading import ConfigReader

ASSUMED_DTYPE = "bfloat16"
"""The model's dtype where neither the file nor the caller states one."""


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What the caller states beside the file.

    ``dtype`` replaces the file's model dtype. ``cache_dtype``, ``conv_dtype`` and ``ssm_dtype`` replace those of
    attention caches, conv states and recurrent states; None follows the rules above. ``speculative_tokens`` widens the
    tap axis of conv states. ``mtp`` adds the layers of multi-token prediction.
    """

    dtype: str | None = None
    cache_dtype: str | None = None
    conv_dtype: str | None = None
    ssm_dtype: str | None = None
    speculative_tokens: int = 0
    mtp: bool = False

    def __post_init__(self) -> None:
        tokens: object = self.speculative_tokens
        if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
            raise ConfigurationError(
                f"speculative_tokens: {tokens!r} is not a whole number of at least 0; state 0 for none"
            )
        mtp: object = self.mtp
        if not isinstance(mtp, bool):
            raise ConfigurationError(f"mtp: {mtp!r} is neither true nor false; state one of them")


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """The options and the file's dtype, resolved: what the families build from."""

    model_dtype: DType
    attention_dtype: DType
    conv_dtype: DType
    stated_ssm_dtype: DType | None
    speculative_tokens: int
    mtp: bool

    def ssm_dtype(self, family_dtype: str | None = None) -> DType:
        """The recurrent state's dtype: stated by the caller, else the family's, else the conv state's."""
        if self.stated_ssm_dtype is not None:
            return self.stated_ssm_dtype
        return self.conv_dtype if family_dtype is None else DType.of(family_dtype)

    @staticmethod
    def resolve(options: CacheOptions, file_dtype: str | None) -> CacheSetting:
        """The setting of a model whose file states ``file_dtype`` (None: it states none)."""
        model = named_dtype("dtype", options.dtype or file_dtype or ASSUMED_DTYPE)
        return CacheSetting(
            model,
            named_dtype("cache_dtype", options.cache_dtype) if options.cache_dtype else model,
            named_dtype("conv_dtype", options.conv_dtype) if options.conv_dtype else model,
            named_dtype("ssm_dtype", options.ssm_dtype) if options.ssm_dtype else None,
            options.speculative_tokens,
            options.mtp,
        )


def named_dtype(option: str, name: str) -> DType:
    """The dtype of that name; the error names the option that asked for it."""
    try:
        return DType.of(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def dtype_of_file(reader: ConfigReader) -> str | None:
    """``dtype`` (today) or ``torch_dtype`` (before transformers 4.56); None where the file states neither."""
    for key in ("dtype", "torch_dtype"):
        stated = reader.text(key)
        if stated is not None:
            return stated.removeprefix("torch.")
    return None
