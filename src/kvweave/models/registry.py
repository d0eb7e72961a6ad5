"""Which family an architecture belongs to, and where in the file its values stand.

``architectures`` decides; a configuration saved without a model has none, then ``model_type`` does. When both are known
they must mean one family. An architecture that is not in the table is an error: nothing is guessed from the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvweave.errors import ConfigurationError
from kvweave.models import attention, deepseek_v4, hybrid, latent, linear, mamba
from kvweave.models.decoder import BuildDecoder
from kvweave.models.reading import ConfigReader


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose caches follow one rule: names for people and files, the rule, and the key that holds the values."""

    name: str
    build: BuildDecoder
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    nested_in: str | None = None


FAMILIES = (
    Family("Llama", attention.llama, ("LlamaForCausalLM",), ("llama",)),
    Family("Mistral", attention.mistral, ("MistralForCausalLM", "MixtralForCausalLM"), ("mistral", "mixtral")),
    Family("Qwen2", attention.qwen2, ("Qwen2ForCausalLM",), ("qwen2",)),
    Family("Qwen2-MoE", attention.qwen2_moe, ("Qwen2MoeForCausalLM",), ("qwen2_moe",)),
    Family("Qwen3", attention.qwen3, ("Qwen3ForCausalLM",), ("qwen3",)),
    Family("Qwen3-MoE", attention.qwen3_moe, ("Qwen3MoeForCausalLM",), ("qwen3_moe",)),
    Family("Gemma 2", attention.alternating, ("Gemma2ForCausalLM",), ("gemma2",)),
    Family("Gemma 3", attention.gemma3, ("Gemma3ForCausalLM",), ("gemma3_text",)),
    Family("Gemma 3", attention.gemma3, ("Gemma3ForConditionalGeneration",), ("gemma3",), "text_config"),
    Family("gpt-oss", attention.alternating, ("GptOssForCausalLM",), ("gpt_oss",)),
    Family("Llama 4", attention.llama4, ("Llama4ForCausalLM",), ("llama4_text",)),
    Family("Llama 4", attention.llama4, ("Llama4ForConditionalGeneration",), ("llama4",), "text_config"),
    Family("GLM-4.5", attention.glm4_moe, ("Glm4MoeForCausalLM",), ("glm4_moe",)),
    Family("MiniMax-M2", attention.minimax_m2, ("MiniMaxM2ForCausalLM",), ("minimax_m2",)),
    Family(
        "DeepSeek V2/V3",
        latent.deepseek,
        ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
        ("deepseek_v2", "deepseek_v3", "kimi_k2"),
    ),
    Family("DeepSeek V3.2", latent.deepseek_v32, ("DeepseekV32ForCausalLM",), ("deepseek_v32",)),
    Family("DeepSeek V4", deepseek_v4.deepseek_v4, ("DeepseekV4ForCausalLM",), ("deepseek_v4",)),
    Family("Kimi Linear", linear.kimi_linear, ("KimiLinearForCausalLM",), ("kimi_linear",)),
    Family("Qwen3-Next", linear.qwen3_next, ("Qwen3NextForCausalLM",), ("qwen3_next",)),
    Family(
        "Qwen3.5",
        linear.qwen3_5,
        ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        ("qwen3_5_text", "qwen3_5_moe_text"),
    ),
    Family(
        "Qwen3.5",
        linear.qwen3_5,
        ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        ("qwen3_5", "qwen3_5_moe"),
        "text_config",
    ),
    Family("Granite 4", hybrid.granite, ("GraniteMoeHybridForCausalLM",), ("granitemoehybrid",)),
    Family("Bamba", hybrid.bamba, ("BambaForCausalLM",), ("bamba",)),
    Family("Falcon-H1", hybrid.falcon_h1, ("FalconH1ForCausalLM",), ("falcon_h1",)),
    Family("Nemotron-H", hybrid.nemotron_h, ("NemotronHForCausalLM",), ("nemotron_h",)),
    Family("Jamba", hybrid.jamba, ("JambaForCausalLM",), ("jamba",)),
    Family("Mamba", mamba.mamba1, ("MambaForCausalLM", "FalconMambaForCausalLM"), ("mamba", "falcon_mamba")),
    Family("Mamba 2", mamba.mamba2, ("Mamba2ForCausalLM",), ("mamba2",)),
)

BY_ARCHITECTURE = {architecture: family for family in FAMILIES for architecture in family.architectures}
BY_MODEL_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}


def architecture_of(config: Mapping[str, object], name: str) -> str:
    """The file's first architecture; its model type where it names none."""
    stated = config.get("architectures")
    if isinstance(stated, list | tuple) and stated and isinstance(stated[0], str):
        return stated[0]
    if stated:
        raise ConfigurationError(f"{name}: architectures is {stated!r}; it must be a list with the architecture's name")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigurationError(
            f"{name}: architectures and model_type are missing; a config.json states at least one of them"
        )
    return model_type


def find_family(config: Mapping[str, object], name: str) -> Family:
    """The family of a file, or an error that names the architecture and what is known."""
    architecture, model_type = architecture_of(config, name), config.get("model_type")
    by_type = BY_MODEL_TYPE.get(model_type) if isinstance(model_type, str) else None
    if architecture == model_type:
        family = by_type
    else:
        family = BY_ARCHITECTURE.get(architecture)
        if family is not None and by_type is not None and family.build is not by_type.build:
            raise ConfigurationError(
                f"{name}: architectures says {architecture} ({family.name}), model_type says {model_type} "
                f"({by_type.name}); correct the one that is wrong"
            )
    if family is None:
        raise ConfigurationError(
            f"{name}: architecture {architecture!r} (model_type {model_type!r}) is not known; what is missing is a "
            "rule for what its layers cache: describe the model with kvweave.core.spec, or use one of "
            f"{', '.join(sorted(BY_ARCHITECTURE))}"
        )
    return family


def reader_of(family: Family, config: Mapping[str, object], name: str) -> ConfigReader:
    """The values that the family's rule reads: the file's own, or those of its text part."""
    reader = ConfigReader(config, name)
    return reader if family.nested_in is None else reader.section(family.nested_in)
