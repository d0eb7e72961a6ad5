"""What a user sets: vLLM's ``--kv-transfer-config``, read once and checked.

==========================  ==========================================================================================
``kv_role``                 ``kv_producer`` (prefills), ``kv_consumer`` (decodes), ``kv_both``
``kv_load_failure_policy``  vLLM's own: ``recompute``, or ``fail`` (the default)
==========================  ==========================================================================================

In ``kv_connector_extra_config``:

==========================  ==========================================================================================
``host``, ``port``          where decode engines reach this engine (127.0.0.1, and a free port); a ``kv_consumer`` with
                            a port describes itself there to ``kvweave check``
``advertise``               the host that they are told, when it is not ``host``
``peers``                   the other side's engines: ``host:port``, ``host`` or a network; loopback is always allowed
``keys``                    this engine's ``.key_secret`` file, see ``kvweave keys``; several machines should have keys
``allowed_keys``            the other side's public keys: a folder of ``.key`` files, or a list of keys
``kv_lease_duration``       seconds for which finished blocks stay, from the last sign of life on (30)
``kv_recompute_threshold``  a prompt of fewer missing tokens than this is computed, not fetched (0)
``staging``                 whether small pieces are gathered by the prefill side: ``auto`` (where that takes less time;
                            the default), ``always``, ``never``
``same_host``               whether a prefill engine on the same machine is read by the system's own copies (true)
``fingerprint``             what both sides' weights are called; a sample of the checkpoint unless set, "" says nothing
==========================  ==========================================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvweave.errors import ConfigurationError
from kvweave.runtime import CurveKeys
from kvweave.transport.rates import STAGING

PREFILL, DECODE = "prefill", "decode"

_ROLES = {"kv_producer": (PREFILL,), "kv_consumer": (DECODE,), "kv_both": (PREFILL, DECODE)}
_EVERY_ADDRESS = ("0.0.0.0", "::", "*")
_KEYS = (
    "host", "port", "advertise", "peers", "keys", "allowed_keys", "kv_lease_duration", "kv_recompute_threshold",
    "fingerprint", "staging", "same_host",
)  # fmt: skip

logger = logging.getLogger("kvweave")


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine's settings. ``roles`` are those of ``PREFILL`` and ``DECODE`` that it has."""

    roles: tuple[str, ...]
    engine_id: str
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    peers: tuple[str, ...] = ()
    keys: CurveKeys | None = None
    lease_seconds: float = 30.0
    recompute_threshold: int = 0
    fingerprint: str | None = None
    staging: str = "auto"
    same_host: bool = True

    @property
    def bind(self) -> str:
        """``host:port`` of the control channel."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_settings(vllm_config: Any) -> Settings:
    """The settings in a ``VllmConfig``; raises ``ConfigurationError`` naming the key, its value and the remedy.

    A key that is not known is told in the log: it may be another connector's.
    """
    transfer = vllm_config.kv_transfer_config
    extra: Mapping[str, Any] = transfer.kv_connector_extra_config
    unknown = sorted(set(extra) - set(_KEYS))
    if unknown:
        logger.warning(
            "kv_connector_extra_config: %s: not known here; known are %s", ", ".join(unknown), ", ".join(_KEYS)
        )
    parallel = vllm_config.parallel_config
    port = _whole(extra, "port", 0)
    host, advertise = _text(extra, "host", "127.0.0.1"), _text(extra, "advertise", None)
    if host in _EVERY_ADDRESS and advertise is None:
        raise ConfigurationError(
            f"kv_connector_extra_config.host: {host} is no address that decode engines can call; "
            "set advertise to this machine's name or address"
        )
    return Settings(
        _ROLES[transfer.kv_role], str(transfer.engine_id), host,
        port + parallel.data_parallel_index if port else 0, advertise,
        _texts(extra, "peers", '["10.0.0.7"]'), _keys(extra), _seconds(extra, "kv_lease_duration", 30.0),
        _whole(extra, "kv_recompute_threshold", 0), _text(extra, "fingerprint", None),
        _choice(extra, "staging", STAGING), _yes(extra, "same_host"),
    )  # fmt: skip


def _text(extra: Mapping[str, Any], key: str, default: Any) -> Any:
    value = extra.get(key, default)
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {value!r} is not a text")
    return value


def _choice(extra: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> str:
    """One of a few words, the first unless it is set."""
    value: str = extra.get(key, choices[0])
    if value not in choices:
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {value!r} is none of {', '.join(choices)}")
    return value


def _yes(extra: Mapping[str, Any], key: str) -> bool:
    """True unless it is set to false."""
    value = extra.get(key, True)
    if not isinstance(value, bool):
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {value!r} is neither true nor false")
    return value


def _whole(extra: Mapping[str, Any], key: str, default: int) -> int:
    value = extra.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {value!r} is not a whole number of at least 0")
    return value


def _seconds(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = extra.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {value!r} is not a number of seconds above 0")
    return float(value)


def _texts(extra: Mapping[str, Any], key: str, example: str) -> tuple[str, ...]:
    texts = extra.get(key, ())
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigurationError(f"kv_connector_extra_config.{key}: {texts!r} is not a list of texts such as {example}")
    return tuple(texts)


def _keys(extra: Mapping[str, Any]) -> CurveKeys | None:
    """The keys, where both settings are there; raises ``ConfigurationError`` that names the line to add."""
    own, allowed = _text(extra, "keys", None), extra.get("allowed_keys")
    if own is None and allowed is None:
        return None
    if own is None or allowed is None:
        lacking = '"keys": "FOLDER/engine.key_secret"' if own is None else '"allowed_keys": "FOLDER"'
        raise ConfigurationError(f"kv_connector_extra_config: keys need both settings; add {lacking}")
    if not isinstance(allowed, str):
        allowed = _texts(extra, "allowed_keys", '["<a public key of 40 letters>"]')
    return CurveKeys.load(own, allowed)
