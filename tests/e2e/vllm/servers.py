"""vLLM servers on this machine's CPU: started with progress, their logs kept, ended whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvweave.serving.probe import is_healthy
from tests.e2e.vllm.gentle import gentle
from tests.e2e.vllm.models import MODELS

START_SECONDS = 300.0
END_SECONDS = 20.0
TIDY_SECONDS, GLANCE_SECONDS = 2.0, 0.02

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Deployment:
    """What one server runs: the model, its shape, its side of the transfer, and further arguments of vLLM.

    ``connector`` is vLLM's ``--kv-transfer-config``, None for a server that neither gives nor takes.
    """

    name: str
    model: Path
    tp: int = 1
    pp: int = 1
    block_size: int | None = None
    connector: Mapping[str, Any] | None = None
    dtype: str = "float32"
    prefix_caching: bool = True
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, port: int) -> list[str]:
        """The command line."""
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model),
            "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype,
            "--max-model-len", "2048", "--tensor-parallel-size", str(self.tp), "--pipeline-parallel-size", str(self.pp),
            "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching", *_eager(self.pp),
        ]  # fmt: skip
        if self.block_size is not None:
            command += ["--block-size", str(self.block_size)]
        if self.connector is not None:
            command += ["--kv-transfer-config", json.dumps(self.connector)]
        return [*command, *self.arguments]


def deploy(
    name: str,
    model: str,
    folder: Path,
    shape: str = "tp=1",
    connector: Mapping[str, Any] | None = None,
    arguments: Sequence[str] = (),
) -> Deployment:
    """A deployment of one of ``models.MODELS`` in a shape such as ``tp=2,pp=1,dp=1,block=64,cache=off``."""
    chosen = MODELS[model]
    stated = dict(part.split("=") for part in shape.split(","))
    block = stated.get("block")
    replicas = ("--data-parallel-size", stated["dp"]) if "dp" in stated else ()
    caching = chosen.prefix_caching and stated.get("cache") != "off"
    return Deployment(
        name, folder, int(stated.get("tp", 1)), int(stated.get("pp", 1)), int(block) if block else None, connector,
        chosen.dtype, caching, (*chosen.arguments, *arguments, *replicas),
    )  # fmt: skip


def kvweave(role: str, policy: str = "fail", **extra: object) -> dict[str, Any]:
    """Our connector's configuration."""
    return {
        "kv_connector": "KVWeaveConnector",
        "kv_connector_module_path": "kvweave.integrations.vllm",
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
    }


@dataclass
class Server:
    """A running server."""

    deployment: Deployment
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def healthy(self) -> bool:
        """Whether it answers."""
        return is_healthy(self.url)

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def end(self) -> None:
        """Ends it with all its workers, in bounded time."""
        for sent, seconds in ((signal.SIGINT, END_SECONDS), (signal.SIGKILL, 5.0)):
            _signal_group(self.process, sent)
            try:
                self.process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                continue
        self._leave_to_tidy_up()
        _signal_group(self.process, signal.SIGKILL)

    def _leave_to_tidy_up(self) -> None:
        """What is left of its group, as Python's tracker of shared memory, has a moment."""
        deadline = time.monotonic() + TIDY_SECONDS
        with suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, 0)
                time.sleep(GLANCE_SECONDS)


class ServerFailed(RuntimeError):
    """A server did not start, or died; the message ends with its log, ``log`` is all of it."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


@contextmanager
def running(deployments: Sequence[Deployment], folder: Path, progress: Progress = print) -> Iterator[list[Server]]:
    """Starts servers side by side and waits until all answer; ends them on leaving."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = [_started(deployment, folder, stack) for deployment in deployments]
        for server in servers:
            wait_healthy(server, progress)
        yield servers


def _started(deployment: Deployment, folder: Path, stack: ExitStack) -> Server:
    server = start(deployment, folder)
    stack.callback(server.end)
    return server


def start(deployment: Deployment, folder: Path) -> Server:
    """Starts a server in a process group of its own; its output goes to ``<name>.log``."""
    port = free_port()
    log = folder / f"{deployment.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            deployment.command(port), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=_environment(deployment),
        )  # fmt: skip
    return Server(deployment, port, process, log)


def wait_healthy(server: Server, progress: Progress = print, seconds: float = START_SECONDS) -> None:
    """Waits until a server answers; raises ``ServerFailed`` with the end of its log when it does not."""
    began = time.monotonic()
    while not server.healthy():
        passed = time.monotonic() - began
        if server.process.poll() is not None or passed > seconds:
            message = f"{server.deployment.name} after {passed:.0f} s ({server.log}):\n{server.tail()}"
            raise ServerFailed(message, server.log.read_text(errors="replace"))
        time.sleep(0.5)
    progress(f"{server.deployment.name} is up after {time.monotonic() - began:.0f} s at {server.url}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(deployment: Deployment) -> dict[str, str]:
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return gentle(os.environ | settings | dict(deployment.environment))


def _eager(pp: int) -> list[str]:
    """No compilation; the CPU's pipeline stages die with ``--enforce-eager`` and want the eager backend instead."""
    if pp == 1:
        return ["--enforce-eager"]
    return ["--compilation-config", json.dumps({"mode": 2, "backend": "eager"})]


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
