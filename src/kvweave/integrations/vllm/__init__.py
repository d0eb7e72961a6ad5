"""The vLLM connector: translates between vLLM's connector interface and kvweave, and decides nothing itself."""

from __future__ import annotations

from typing import Any

__all__ = ["KVWeaveConnector", "register"]

CONNECTOR = "KVWeaveConnector"

_OFFLOADERS = ("OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheMPConnector")
_REPLACED = "--kv-offloading-size replaces kv_connector; leave it out and name both connectors in a MultiConnector"


def register() -> None:
    """Makes the connector known to vLLM by its name; vLLM calls this at start (``vllm.general_plugins``).

    ``MultiConnector`` rebuilds its children's statistics by name, in the API server too.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR, "kvweave.integrations.vllm.connector", CONNECTOR)


def __getattr__(name: str) -> Any:
    """The connector's class, for ``kv_connector_module_path``; imported on demand, since it needs vLLM.

    It is then known by its name too, also where no entry point has been loaded (``VLLM_PLUGINS`` may leave it out).
    """
    if name != CONNECTOR:
        hint = f": {_REPLACED}" if name in _OFFLOADERS else ""
        raise AttributeError(f"module {__name__} has no attribute {name!r}{hint}")
    register()
    from kvweave.integrations.vllm.connector import KVWeaveConnector

    return KVWeaveConnector
