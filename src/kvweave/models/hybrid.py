"""Hybrids of attention and Mamba: Granite 4, Bamba, Falcon-H1, Nemotron-H and Jamba.

=============  ===================================================  ====================================================
family         which layer is what                                  inner width of the Mamba mixer
=============  ===================================================  ====================================================
Granite 4      ``layer_types``                                      heads x head size, = ``mamba_expand`` x hidden size
Bamba          attention at ``attn_layer_indices``                  the same
Falcon-H1      every layer has both                                 ``mamba_d_ssm``; ``mamba_expand`` x hidden when null
Nemotron-H     ``hybrid_override_pattern`` (or                      heads x head size (``expand`` says something else)
               ``layers_block_type``): M, ``*``, - or E
Jamba          attention where layer % period == offset             ``mamba_expand`` x hidden size (Mamba 1)
=============  ===================================================  ====================================================

The Mamba keys of a model without Mamba layers mean nothing (Granite-4.0-Micro) and are not read.
"""

from __future__ import annotations

from kvweave.models.attention import FULL, attention_shape
from kvweave.models.decoder import Decoder, Module, Predictor, predictor_count, refuse_mtp
from kvweave.models.linear import LINEAR
from kvweave.models.mamba import Mamba2Shape, mamba1_spec, require_inner_size
from kvweave.models.reading import LARGEST_LAYER_COUNT, ConfigReader
from kvweave.models.setting import CacheSetting

PATTERN = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
"""Nemotron-H's letters, one per layer (transformers' NemotronHConfig)."""


def granite(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Granite 4: ``layer_types`` says attention or mamba."""
    refuse_mtp(reader, setting)
    kinds = reader.words("layer_types", (FULL, LINEAR), reader.layer_count())
    return _either(reader, setting, [kind == FULL for kind in kinds])


def bamba(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Bamba: attention at the listed layers, which count from zero; null means none."""
    refuse_mtp(reader, setting)
    layers = reader.layer_count()
    if "attn_layer_indices" not in reader.values:
        raise reader.missing("attn_layer_indices")
    attention = reader.numbers("attn_layer_indices", layers - 1) if reader.states("attn_layer_indices") else ()
    return _either(reader, setting, [layer in attention for layer in range(layers)])


def falcon_h1(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Falcon-H1: every layer runs attention and Mamba 2 side by side."""
    refuse_mtp(reader, setting)
    reader.refuse("attn_layer_indices", "in this family every layer has attention: make it null")
    inner = reader.optional_count("mamba_d_ssm") or _expanded(reader)
    shape = _mamba2_shape(reader, inner)
    require_inner_size(reader, shape, "mamba_d_ssm (or mamba_expand x hidden_size)", inner)
    attention = attention_shape(reader, setting, divided=True).full()
    modules = (Module("self_attn", attention), Module("mamba", shape.spec(reader, setting)))
    return Decoder((modules,) * reader.layer_count())


def jamba(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Jamba: attention where layer % ``attn_layer_period`` == ``attn_layer_offset``, else Mamba 1."""
    refuse_mtp(reader, setting)
    reader.refuse("sliding_window", "no window is known for this family: make it null")
    period = reader.count("attn_layer_period")
    offset = reader.number("attn_layer_offset")
    if offset >= period:
        raise reader.error(f"attn_layer_offset {offset} is not below attn_layer_period {period}; correct one")
    attention = (Module("self_attn", attention_shape(reader, setting, divided=True).full()),)
    spec = mamba1_spec(reader, setting, _expanded(reader), reader.count("mamba_d_state"), reader.count("mamba_d_conv"))
    mixer = (Module("mamba", spec),)
    return Decoder(tuple(attention if layer % period == offset else mixer for layer in range(reader.layer_count())))


def nemotron_h(reader: ConfigReader, setting: CacheSetting) -> Decoder:
    """Nemotron-H: one mixer per layer; the recurrent state is float32 unless the file says otherwise.

    float32 is vLLM's default for this family (``NemotronHForCausalLMConfig``), whatever the model's dtype.
    """
    reader.refuse("sliding_window", "no window is known for this family: make it null")
    kinds = _nemotron_kinds(reader, "hybrid_override_pattern", "layers_block_type")
    if reader.states("num_hidden_layers") and reader.layer_count() != len(kinds):
        raise reader.error(
            f"num_hidden_layers is {reader.layer_count()}, the pattern has {len(kinds)}; make them equal"
        )
    modules: dict[str, tuple[Module, ...]] = {"mlp": (), "moe": ()}
    depth = predictor_count(reader, "num_nextn_predict_layers") if setting.mtp else 0
    ahead = _nemotron_kinds(reader, "mtp_hybrid_override_pattern", "mtp_layers_block_type") * depth if depth else ()
    if FULL in kinds + ahead:
        attention = attention_shape(reader, setting, "head_dim", "attention_head_dim").full()
        modules[FULL] = (Module("mixer", attention),)
    if LINEAR in kinds + ahead:
        modules[LINEAR] = (Module("mixer", _nemotron_mixer(reader).spec(reader, setting, _nemotron_ssm_dtype(reader))),)
    predictors = tuple(Predictor(f"mtp.layers.{place}", modules[kind]) for place, kind in enumerate(ahead))
    return Decoder(tuple(modules[kind] for kind in kinds), predictors)


def _either(reader: ConfigReader, setting: CacheSetting, attends: list[bool]) -> Decoder:
    modules: dict[bool, tuple[Module, ...]] = {}
    if True in attends:
        modules[True] = (Module("self_attn", attention_shape(reader, setting, divided=True).full()),)
    if False in attends:
        shape = _mamba2_shape(reader, _expanded(reader))
        require_inner_size(reader, shape, "mamba_expand x hidden_size", _expanded(reader))
        modules[False] = (Module("mamba", shape.spec(reader, setting)),)
    return Decoder(tuple(modules[attention] for attention in attends))


def _expanded(reader: ConfigReader) -> int:
    return reader.count("mamba_expand") * reader.count("hidden_size")


def _mamba2_shape(reader: ConfigReader, inner_size: int) -> Mamba2Shape:
    """The ``mamba_*`` keys; a head size of "auto" is the inner width over the heads (transformers' rule)."""
    heads = reader.count("mamba_n_heads")
    automatic = reader.values.get("mamba_d_head") == "auto"
    return Mamba2Shape(
        heads,
        inner_size // heads if automatic else reader.count("mamba_d_head"),
        reader.count("mamba_n_groups"),
        reader.count("mamba_d_state"),
        reader.count("mamba_d_conv"),
    )


def _nemotron_mixer(reader: ConfigReader) -> Mamba2Shape:
    return Mamba2Shape(
        reader.count("mamba_num_heads"),
        reader.count("mamba_head_dim"),
        reader.count("n_groups", "mamba_n_groups"),
        reader.count("ssm_state_size"),
        reader.count("conv_kernel", "mamba_d_conv"),
    )


def _nemotron_ssm_dtype(reader: ConfigReader) -> str:
    return reader.text("mamba_ssm_cache_dtype") or "float32"


def _nemotron_kinds(reader: ConfigReader, pattern_key: str, list_key: str) -> tuple[str, ...]:
    pattern = reader.text(pattern_key)
    if pattern is None and not reader.states(list_key):
        raise reader.missing(pattern_key, list_key)
    if pattern is None:
        return reader.words(list_key, tuple(PATTERN.values()))
    unknown = sorted(set(pattern) - set(PATTERN))
    if unknown or not 1 <= len(pattern) <= LARGEST_LAYER_COUNT:
        raise reader.error(
            f"{pattern_key} is {pattern[:80]!r}; it must be letters of {' '.join(PATTERN)}, one per layer"
        )
    return tuple(PATTERN[letter] for letter in pattern)
