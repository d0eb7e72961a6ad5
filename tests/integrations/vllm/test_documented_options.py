"""The commands of documents and examples, read by vLLM's own parser and by vllm-router's."""

from __future__ import annotations

import argparse
from functools import cache

import pytest
from vllm.config import KVTransferConfig
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kvweave.serving.shape import OPTIONS, VARIABLES
from tests.documented_commands import Shown, shown_commands


@cache
def parser() -> FlexibleArgumentParser:
    return make_arg_parser(FlexibleArgumentParser(exit_on_error=False))


@pytest.mark.parametrize("command", [each for each in shown_commands("vllm") if each.words[1] == "serve"], ids=str)
def test_a_server_s_command_is_understood(command: Shown) -> None:
    read = parser().parse_args(list(command.words[2:]))
    assert isinstance(read.kv_transfer_config, KVTransferConfig)


@pytest.mark.parametrize("command", shown_commands("vllm-router"), ids=str)
def test_the_router_s_command_is_understood(command: Shown) -> None:
    router = pytest.importorskip("vllm_router.router_args", reason="vllm-router comes with the extra vllm")
    read = argparse.ArgumentParser()
    router.RouterArgs.add_cli_args(read, exclude_host_port=False)
    assert read.parse_args(list(command.words[1:])).vllm_pd_disaggregation


@pytest.mark.parametrize("option", OPTIONS.values())
def test_an_option_that_serve_passes_on_exists(option: str) -> None:
    assert option in parser()._option_string_actions


@pytest.mark.parametrize("variable", VARIABLES.values())
def test_a_variable_that_serve_sets_exists(variable: str) -> None:
    from vllm import envs

    assert variable in envs.environment_variables
