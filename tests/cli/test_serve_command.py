"""``kvweave serve``: what it refuses at once, the commands it would type, and its life with stand-ins for vLLM."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvweave.serving.probe import is_healthy
from tests.cli.stand_ins import install
from tests.serving.own_ports import own_ports
from tests.serving.waiting import wait_until

SOURCE = Path(__file__).parents[2] / "src"
CONFIGURATION = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 2, "torch_dtype": "bfloat16", "vocab_size": 320,
}  # fmt: skip
SIDES = ("--prefill", "tp=2", "--decode", "tp=1,block=128")
HAS_PARTS = find_spec("nixl") is not None and find_spec("zmq") is not None and find_spec("vllm_router") is None


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGURATION))
    return str(folder)


class Served:
    """A ``kvweave serve --json`` in a process of its own."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvweave", "serve", *arguments],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def until(self, event: str) -> dict[str, Any]:
        """The next document of that event."""
        for line in self.process.stdout:
            document = json.loads(line)
            if document["event"] == event:
                return document
        raise AssertionError(f"no {event}: {self.process.stderr.read()}")


@pytest.fixture
def serve(model: str, tmp_path: Path) -> Iterator[Any]:
    """Starts ``kvweave serve`` of the model in front of stand-ins, with a fault of theirs if need be."""
    if not HAS_PARTS:
        pytest.skip("needs NIXL and ZeroMQ (the extra nixl), and no vllm-router beside the stand-in")
    found = install(tmp_path / "installed", sys.executable)
    environment = {
        "PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], str(SOURCE)]),
        "PATH": os.pathsep.join([found["PATH"], os.environ["PATH"]]),
        "CUDA_VISIBLE_DEVICES": "0,1,2",
        "COLUMNS": "160",
    }
    started: list[Served] = []

    def serve(*arguments: str, fault: str = "") -> Served:
        port = str(own_ports(6))
        wanted = (model, *SIDES, "--port", port, "--logs", str(tmp_path / "logs"), *arguments)
        started.append(Served(wanted, environment | {"STAND_IN_FAULT": fault}))
        return started[-1]

    yield serve
    for each in started:
        each.process.kill()
        each.process.communicate()


def planned(run_document: Any, *arguments: str) -> list[dict[str, Any]]:
    code, document = run_document("serve", *arguments, "--dry-run")
    assert (code, document["schema"], document["event"]) == (0, "kvweave.serve/1", "planned")
    return document["deployments"]


def test_a_dry_run_prints_commands_that_can_be_typed(run, model):
    result = run("serve", model, *SIDES, "--dry-run", "--", "--max-model-len", "2048")
    assert result.exit_code == 0
    titles = [line for line in result.stdout.splitlines() if line.startswith("# ")]
    commands = [shlex.split(line) for line in result.stdout.splitlines() if not line.startswith("# ")]
    assert titles == ["# prefill (tp=2)", "# decode (tp=1,block=128)", "# router"]
    assert [model in command for command in commands] == [True, True, False]
    assert [command[-2:] == ["--max-model-len", "2048"] for command in commands] == [True, True, False]


def test_a_dry_run_as_a_document_has_every_deployment(run_document, model):
    found = planned(run_document, model, *SIDES, "--decode", "tp=4", "--port", "24500")
    assert [each["name"] for each in found] == ["prefill", "decode-0", "decode-1", "router"]
    assert found[-1]["url"] == "http://127.0.0.1:24500"
    assert all(isinstance(each["command"], list) and isinstance(each["environment"], dict) for each in found)


def test_a_progressive_fleet_has_a_proxy_in_the_router_s_place(run_document, model):
    *_, proxy = planned(run_document, model, *SIDES, "--progressive", "--port", "24500")
    assert (proxy["name"], proxy["url"]) == ("proxy", "http://127.0.0.1:24500")
    assert "kvweave.serving.proxy" in proxy["command"]


def test_a_dry_run_makes_no_folder(run, model, tmp_path):
    run("serve", model, *SIDES, "--dry-run", "--logs", str(tmp_path / "logs"))
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("--prefill", "tp=3", "--decode", "tp=1"), 2, ["--prefill", "4 units over tp=3"]),
        (("--prefill", "tp=1,dtype=bfloat16", "--decode", "tp=1,dtype=fp8_e4m3"), 1, ["self_attn k dtype", "fp8_e4m3"]),
        (("--prefill", "tp=1,packing=page", "--decode", "tp=1"), 2, ["--prefill: packing: vLLM cannot be told"]),
        (("--prefill", "tp=1", "--decode", "tp=1,blok=3"), 2, ["--decode: blok", "mean block?"]),
        (("--prefill", "tp=1"), 2, ["--decode"]),
        ((*SIDES, "other"), 2, ["'other'", "behind --"]),
        ((*SIDES, "--", "--port", "1"), 2, ["--port: not for vLLM"]),
        ((*SIDES, "--port", "0"), 2, ["--port"]),
    ],
    ids=["sizes", "dtypes", "not vLLM's", "misspelt", "one side", "two models", "vLLM's port", "no port"],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_starts(run, model, arguments, code, named):
    result = run("serve", model, *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert [word for word in named if word not in result.stderr] == []


def test_every_reason_against_a_pair_is_shown(run, model):
    shown = run("serve", model, "--prefill", "tp=1,dtype=bfloat16", "--decode", "tp=1,dtype=fp8_e4m3").stderr
    assert [f"model.layers.0.self_attn {part} dtype" in shown for part in "kv"] == [True, True]


def test_every_pair_is_checked(run, model):
    sides = ("--prefill", "tp=1", "--prefill", "tp=2", "--decode", "tp=4", "--decode", "tp=1,dtype=fp8_e4m3")
    assert run("serve", model, *sides, "--dry-run").exit_code == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [({"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}, "NobodyForCausalLM"), (None, "not on this")],
    ids=["unknown architecture", "not fetched yet"],
)
def test_what_cannot_be_checked_beforehand_is_said(run, model, change, named):
    if change is not None:
        (Path(model) / "config.json").write_text(json.dumps(CONFIGURATION | change))
    result = run("serve", model if change else "nobody/such-a-model", *SIDES, "--dry-run")
    assert result.exit_code == 0
    assert named in result.stderr
    assert "shows when the servers meet" in result.stderr


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_what_is_not_installed_is_named(run, model):
    result = run("serve", model, *SIDES)
    assert result.exit_code == 2
    assert [word for word in ("vllm", "vllm-router", "kvweave[vllm]", "--dry-run") if word not in result.stderr] == []


def test_a_fleet_comes_up_answers_and_ends_on_a_signal(serve):
    served = serve("--json")
    ready = served.until("ready")
    assert is_healthy(ready["url"])
    assert ready["question"]["path"] == "/v1/chat/completions"
    assert ready["question"]["body"]["model"] == "the-model"
    served.process.send_signal(signal.SIGINT)
    assert served.until("ended")
    assert (served.process.wait(), is_healthy(ready["url"])) == (130, False)
    assert not any(map(is_healthy, ready["servers"].values()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_no_server_outlives_it(serve, number):
    served = serve("--json")
    ready = served.until("ready")
    served.process.send_signal(number)
    served.process.wait()
    urls = [ready["url"], *ready["servers"].values()]
    wait_until(lambda: not any(map(is_healthy, urls)), "the end of all servers")


def test_people_see_steps_addresses_and_a_line_to_paste(serve):
    served = serve()
    lines = []
    for line in served.process.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            break
    served.process.send_signal(signal.SIGTERM)
    shown, notices = "".join(lines), served.process.communicate()[1]
    assert served.process.returncode == 128 + signal.SIGTERM
    asked = next(line for line in lines if line.strip().startswith("curl "))
    assert json.loads(shlex.split(asked)[-1])["messages"]
    assert [word for word in ("serving at http://", "prefill", "tp=1,block=128") if word not in shown] == []
    steps = ("prefill: starting at", "decode: healthy after", "first question", "all have ended")
    assert [word for word in steps if word not in notices] == []


def test_a_model_without_chat_template_is_asked_plainly(serve):
    assert serve("--json", fault="router refuses").until("ready")["question"]["path"] == "/v1/completions"


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [("decode dies", 3, "ValueError: no such block size"), ("decode leaves", 4, "RuntimeError: out of memory")],
    ids=["while starting", "later"],
)
def test_a_server_that_dies_is_named_with_the_end_of_its_log(serve, fault, code, words):
    served = serve("--json", fault=fault)
    failed = served.until("failed")
    assert (failed["deployment"], failed["process_exit_code"]) == ("decode", code)
    assert f"cause: {words}" in failed["log_end"]
    assert served.process.wait() == 1


def test_people_see_which_log_it_is(serve):
    served = serve(fault="decode dies")
    shown = served.process.communicate()[1]
    assert served.process.returncode == 1
    assert "error: decode ended with exit code 3; the end of " in shown
    assert "decode.log:" in shown
    assert "  | cause: ValueError: no such block size" in shown


def test_a_fleet_that_does_not_answer_is_ended(serve):
    served = serve("--json", fault="router fails")
    failed = served.until("failed")
    assert (failed["http_status"], failed["answer"], served.process.wait()) == (400, "no", 1)


def test_too_few_gpus_are_named(serve):
    served = serve("--prefill", "tp=1")
    assert "GPUs: the servers need 4 (2 + 1 + 1), this machine shows 3 (0, 1, 2)" in served.process.communicate()[1]
    assert served.process.returncode == 2


def test_a_port_in_use_is_named_before_anything_starts(serve, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        served = serve("--port", str(listener.getsockname()[1]))
        assert "is taken; choose another, such as --port" in served.process.communicate()[1]
    assert (served.process.returncode, (tmp_path / "logs").exists()) == (2, False)
