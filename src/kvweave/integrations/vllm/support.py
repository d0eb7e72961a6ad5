"""What this connector does not do: named in tables, refused at start all at once, or left to the decode engine.

A configuration is refused where tokens could come out wrong or a server could break later. A request is never refused:
what cannot be handed over is computed where it is decoded (``COMPUTED_REQUESTS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.errors import ConfigurationError
from kvweave.integrations.vllm import CONNECTOR


@dataclass(frozen=True, slots=True)
class Refusal:
    """An option of vLLM that is refused at start: what the user set, why that cannot work, and what to do.

    ``applies`` tells it from a ``VllmConfig``.
    """

    name: str
    reason: str
    remedy: str
    applies: Callable[[Any], bool]

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}; {self.remedy}"


REFUSED_METHODS: Mapping[str, str] = {
    "extract_hidden_states": "it keeps hidden states, not a cache that decoding reads",
    "custom_class": "what a drafter of your own caches is not known",
    "dflash": "its drafter's cache was never seen to arrive whole",
    "dspark": "its drafter's cache was never seen to arrive whole",
}
"""Methods of ``--speculative-config`` that are refused. Other drafters with layers of their own (draft model, EAGLE,
MTP) run on both sides or on none: the handshake compares them."""

CACHELESS_DRAFTERS = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator"})
"""Methods that cache nothing of a prompt, so that either side may use them alone."""


def _refused_method(method: str, reason: str) -> Refusal:
    def applies(vllm_config: Any) -> bool:
        speculation = vllm_config.speculative_config
        return bool(speculation is not None and speculation.method == method)

    return Refusal(f"--speculative-config method {method}", reason, "choose another method", applies)


def _names_media_by_number(vllm_config: Any) -> bool:
    media = vllm_config.model_config.multimodal_config
    caching = vllm_config.cache_config.enable_prefix_caching
    return media is not None and media.mm_processor_cache_gb == 0 and not caching


def _replicates_by_context(vllm_config: Any) -> bool:
    parallel = vllm_config.parallel_config
    return bool(parallel.prefill_context_parallel_size > 1 and parallel.decode_context_parallel_size == 1)


REFUSED_OPTIONS: tuple[Refusal, ...] = (
    Refusal(
        "--runner pooling", "pooling models generate nothing, so nobody decodes from their cache",
        "serve this model without the connector",
        lambda config: config.model_config.runner_type == "pooling",
    ),
    Refusal(
        "encoder-decoder model", "its cross attention caches the encoder's states, which have no positions in the "
        "prompt", "serve this model without the connector",
        lambda config: bool(config.model_config.is_encoder_decoder),
    ),
    Refusal(
        "diffusion model", "it rewrites the cache of tokens that it has already computed",
        "serve this model without the connector",
        lambda config: bool(config.model_config.is_diffusion),
    ),
    Refusal(
        "--enable-sleep-mode", "a sleeping engine takes away memory that peers may be reading",
        "leave it out, and stop the server instead",
        lambda config: bool(config.model_config.enable_sleep_mode),
    ),
    Refusal(
        "--weight-transfer-config", "weights that change while the server runs are no longer those that the handshake "
        "compared", "leave it out, and start the server anew with the new weights",
        lambda config: config.weight_transfer_config is not None,
    ),
    Refusal(
        "--mm-processor-cache-gb 0 with --no-enable-prefix-caching", "vLLM then numbers pictures instead of naming "
        "them by their content, so two of them cannot be told apart", "leave one of the two out",
        _names_media_by_number,
    ),
    Refusal(
        "--nnodes", "an engine's workers must live on the machine of its scheduler", "use one machine per engine",
        lambda config: config.parallel_config.nnodes_within_dp > 1,
    ),
    Refusal(
        "--prefill-context-parallel-size", "without decode context parallelism vLLM hands over one description per "
        "tensor rank only", "set --decode-context-parallel-size to the same size, or leave prefill context away",
        _replicates_by_context,
    ),
    *(_refused_method(method, reason) for method, reason in REFUSED_METHODS.items()),
)  # fmt: skip
"""vLLM's options that are refused at start."""

REFUSED_SETTINGS: Mapping[str, str] = {
    "bidirectional_kv_xfer": "prefill engines do not read from decode engines",
    "transfer_mode": "decode engines read; there is no other mode",
}
"""Keys of ``kv_connector_extra_config`` that NixlConnector knows and this connector refuses."""

_SAME_REQUESTS = "both would hand over the same requests; use one of the two"

REFUSED_NEIGHBOURS: Mapping[str, str] = {
    "NixlConnector": _SAME_REQUESTS,
    "NixlPullConnector": _SAME_REQUESTS,
    "NixlPushConnector": _SAME_REQUESTS,
    "MooncakeConnector": _SAME_REQUESTS,
    "MoRIIOConnector": _SAME_REQUESTS,
    "DecodeBenchConnector": "it fills caches with made-up values; leave it out",
}
"""Connectors that must not stand beside this one in a ``MultiConnector``; nor may a second KVWeaveConnector."""

COMPUTED_REQUESTS: Mapping[str, str] = {
    "prompt_logprobs": "the prompt's logits are in no cache, so the decode engine computes the whole prompt",
    "use_beam_search": "vLLM does not pass kv_transfer_params on to its beams",
    "streaming input": "the prompt of a session grows after it was offered",
}
"""Requests that are answered as usual, with nothing transferred."""


def refuse_unsupported(vllm_config: Any, engine: Any) -> None:
    """Raises ``ConfigurationError`` with everything in a configuration that this connector refuses.

    ``vllm_config`` is what the connector was given, ``engine`` the whole ``VllmConfig``, which names all of
    ``MultiConnector``'s children (None where vLLM does not say it).
    """
    found = [str(refusal) for refusal in REFUSED_OPTIONS if refusal.applies(vllm_config)]
    found += _settings(vllm_config.kv_transfer_config.kv_connector_extra_config)
    found += _neighbours(vllm_config, engine)
    if found:
        raise ConfigurationError("\n".join(found))


def has_neighbours(engine: Any) -> bool:
    """Whether other connectors stand beside this one in a ``MultiConnector``; only workers are told."""
    return len(_children(engine)) > 1


def _settings(extra: Mapping[str, Any]) -> Iterator[str]:
    for key, reason in REFUSED_SETTINGS.items():
        if extra.get(key):
            yield f"kv_connector_extra_config.{key}: {extra[key]!r}: {reason}; leave it out"


def _children(engine: Any) -> list[Mapping[str, Any]]:
    if engine is None or engine.kv_transfer_config is None:
        return []
    return list(engine.kv_transfer_config.kv_connector_extra_config.get("connectors", []))


def _neighbours(vllm_config: Any, engine: Any) -> Iterator[str]:
    names = [str(child.get("kv_connector")) for child in _children(engine)]
    for name in names:
        if name in REFUSED_NEIGHBOURS:
            yield f"MultiConnector: {name} stands beside {CONNECTOR}: {REFUSED_NEIGHBOURS[name]}"
    if names.count(CONNECTOR) > 1:
        yield f"MultiConnector: {CONNECTOR} stands beside another {CONNECTOR}: {_SAME_REQUESTS}"
    if names and engine.kv_transfer_config.kv_role not in ("kv_both", vllm_config.kv_transfer_config.kv_role):
        yield (
            f"MultiConnector: its kv_role is {engine.kv_transfer_config.kv_role}, that of {CONNECTOR} in it "
            f"{vllm_config.kv_transfer_config.kv_role}; give both the same, or kv_both to MultiConnector"
        )
