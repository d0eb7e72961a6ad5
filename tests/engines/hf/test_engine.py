"""A prefill engine and a decode engine of different shape in one process: answers, freed blocks, refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kvweave.core.cache_config import CacheConfig
from kvweave.core.parallel import ParallelConfig
from kvweave.errors import (
    ConfigurationError,
    IncompatiblePeer,
    LocalProtocolError,
    RemoteProtocolError,
    TransferRefused,
    TransportError,
)
from kvweave.runtime import new_transfer_id
from kvweave.transport.memory import MemoryNetwork
from tests.engines.hf.planted import ZeroingTransport

pytest.importorskip("transformers", reason="the embedded engine needs the extra hf")
pytest.importorskip("zmq", reason="the control channel needs the extra nixl")
from kvweave.engines.hf.engine import (
    EngineShape,
    HuggingFaceDecode,
    HuggingFacePrefill,
    weights_fingerprint,
)

PREFILL = EngineShape(ParallelConfig(tp=4), CacheConfig(16, "HND", num_blocks=24))
DECODE = EngineShape(ParallelConfig(tp=2), CacheConfig(64, "NHD", num_blocks=8))
FAMILIES = ("llama", "gemma3", "deepseek-v3", "deepseek-v4", "granite-4", "qwen3-next")
PROMPT = list(b"A plan is the intersection of the boxes of two engines; it is proved before a single byte is moved.")
NEW_TOKENS = 8

Factory = Callable[[str], Any]


@pytest.fixture(params=["memory", "nixl", "nixl, staged"])
def transport(request: pytest.FixtureRequest) -> Factory:
    """Makes a rank's transport; all of one test can reach one another."""
    if request.param == "memory":
        return MemoryNetwork().join
    made: Factory = pytest.importorskip("kvweave.transport.nixl", exc_type=ImportError).NixlTransport
    return partial(made, staging="always" if "staged" in request.param else "never")


@contextmanager
def engines(source: Any, target: Any, transport: Factory, reader: Factory | None = None) -> Iterator[tuple[Any, Any]]:
    with (
        HuggingFacePrefill(source, PREFILL, transport) as prefill,
        HuggingFaceDecode(target, DECODE, reader or transport) as decode,
    ):
        yield prefill, decode


@pytest.fixture
def llama(prefill_runner, decode_runner, transport) -> Iterator[tuple[Any, Any]]:
    with engines(prefill_runner("llama"), decode_runner("llama"), transport) as pair:
        yield pair


def fine_tuned(runner: Any) -> Any:
    """The same model with one weight a little different."""
    import torch

    network = copy.deepcopy(runner.network)
    with torch.no_grad():
        next(network.parameters()).flatten()[0] += 0.001
    return replace(runner, network=network)


@pytest.mark.parametrize("length", [2, 33, len(PROMPT)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_answer_is_that_of_one_engine(family, length, transport, prefill_runner, decode_runner):
    source, target, prompt = prefill_runner(family), decode_runner(family), PROMPT[:length]
    with engines(source, target, transport) as (prefill, decode):
        answer = decode.decode(prompt, prefill.prefill("request", prompt), NEW_TOKENS)
        assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)
    assert list(answer.tokens) == source.reference(prompt, NEW_TOKENS)


@pytest.mark.parametrize("preempted_after", [0, 2], ids=["undisturbed", "preempted after two chunks"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_is_followed_in_chunks_gives_the_answer_of_one_engine(
    family, preempted_after, transport, prefill_runner, decode_runner
):
    source, transfer_id = prefill_runner(family), new_transfer_id()
    with engines(source, decode_runner(family), transport) as (prefill, decode), ThreadPoolExecutor(1) as pool:
        arguments = (PROMPT, transfer_id, prefill.address, NEW_TOKENS)
        answer = pool.submit(decode.decode_followed, *arguments)
        prefill.prefill_in_chunks("request", PROMPT, transfer_id, 24, preempted_after)
        tokens = answer.result(60).tokens
        assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)
    assert list(tokens) == source.reference(PROMPT, NEW_TOKENS, chunk_tokens=24)


def test_a_prompt_of_one_token_is_answered_without_a_transfer(llama, prefill_runner):
    prefill, decode = llama
    assert prefill.prefill("request", PROMPT[:1]) is None
    answer = decode.decode(PROMPT[:1], None, NEW_TOKENS)
    assert answer.delivered is None
    assert list(answer.tokens) == prefill_runner("llama").reference(PROMPT[:1], NEW_TOKENS)


def test_several_requests_are_answered_in_any_order_and_freed(llama, prefill_runner):
    prefill, decode = llama
    prompts = {f"request {length}": PROMPT[:length] for length in (90, 17, 64)}
    offers = {name: prefill.prefill(name, prompt) for name, prompt in prompts.items()}
    answers = {name: decode.decode(prompts[name], offers[name], NEW_TOKENS) for name in reversed(offers)}
    assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)
    reference = prefill_runner("llama").reference
    assert {name: list(answer.tokens) for name, answer in answers.items()} == {
        name: reference(prompt, NEW_TOKENS) for name, prompt in prompts.items()
    }


def test_requests_of_several_threads_are_answered_each_with_its_own(llama, prefill_runner):
    prefill, decode = llama
    prompts = [PROMPT[start : start + 20] for start in range(8)]

    def ask(prompt: list[int]) -> list[int]:
        params = prefill.prefill(f"request {prompt}"[:60], prompt)
        return list(decode.decode(prompt, params, NEW_TOKENS).tokens)

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(ask, prompts))
    assert answers == [prefill_runner("llama").reference(prompt, NEW_TOKENS) for prompt in prompts]
    assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)


def test_more_requests_than_the_memory_holds_at_once_are_served_one_after_the_other(llama):
    prefill, decode = llama
    for number in range(8):
        decode.decode(PROMPT, prefill.prefill(f"request {number}", PROMPT), 1)
        assert prefill.blocks_in_use() == 0


def test_an_answer_says_what_was_moved_and_from_where(llama):
    prefill, decode = llama
    delivered = decode.decode(PROMPT, prefill.prefill("request", PROMPT), 1).delivered
    assert delivered.nbytes == (len(PROMPT) - 1) * 4 * 2 * 4 * 32 * 4
    read = {rank.tp: sorted(source.tp for source in sources) for rank, sources in delivered.sources.items()}
    assert read == {0: [0, 1], 1: [2, 3]}


def test_an_offer_that_was_fetched_before_is_refused_and_its_blocks_freed(llama):
    prefill, decode = llama
    params = prefill.prefill("request", PROMPT)
    decode.decode(PROMPT, params, 1)
    with pytest.raises(TransferRefused, match="reason: "):
        decode.decode(PROMPT, params, 1)
    assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"remote_request_id": "somebody else's"}, TransferRefused),
        ({"remote_host": "192.0.2.7"}, RemoteProtocolError),
        ({"kvweave": None}, RemoteProtocolError),
    ],
    ids=["another request", "a host that is not allowed", "nothing of ours"],
)
def test_a_reference_that_was_changed_on_its_way_is_refused_and_its_blocks_freed(llama, change, error):
    prefill, decode = llama
    params = prefill.prefill("request", PROMPT)
    with pytest.raises(error):
        decode.decode(PROMPT, {**params, **change}, 1)
    assert decode.blocks_in_use() == 0


def test_a_prefill_engine_that_has_ended_fails_the_request_and_frees_its_blocks(llama):
    prefill, decode = llama
    params = prefill.prefill("request", PROMPT)
    prefill.close()
    with pytest.raises(TransportError):
        decode.decode(PROMPT, params, 1, timeout_seconds=1)
    assert (prefill.blocks_in_use(), decode.blocks_in_use()) == (0, 0)


def test_a_fine_tune_is_refused_by_its_fingerprint(prefill_runner, decode_runner, transport):
    with engines(prefill_runner("llama"), fine_tuned(decode_runner("llama")), transport) as (prefill, decode):
        params = prefill.prefill("request", PROMPT)
        with pytest.raises(IncompatiblePeer, match="serve the same weights"):
            decode.decode(PROMPT, params, 1)
        assert decode.blocks_in_use() == 0


def test_the_fingerprint_is_of_the_weights_alone(prefill_runner, decode_runner):
    runner = prefill_runner("llama")
    assert weights_fingerprint(runner) == weights_fingerprint(decode_runner("llama"))
    assert weights_fingerprint(runner) != weights_fingerprint(fine_tuned(runner))


def test_a_prompt_that_does_not_fit_is_refused_and_takes_nothing(llama):
    prefill, _ = llama
    with pytest.raises(LocalProtocolError, match="24 free blocks, 392 tokens need 25"):
        prefill.prefill("request", (PROMPT * 4)[:393])
    assert prefill.blocks_in_use() == 0


def test_an_offer_that_nobody_fetches_keeps_its_blocks_until_the_engine_ends(llama):
    prefill, _ = llama
    prefill.prefill("request", PROMPT)
    assert prefill.blocks_in_use(patience_seconds=0.01) == 7
    prefill.close()
    assert prefill.blocks_in_use() == 0


def test_bytes_that_do_not_arrive_show_in_the_answer(transport, prefill_runner, decode_runner):
    source = prefill_runner("llama")
    broken = engines(source, decode_runner("llama"), transport, lambda name: ZeroingTransport(transport(name)))
    with broken as (prefill, decode):
        answer = decode.decode(PROMPT, prefill.prefill("request", PROMPT), NEW_TOKENS)
    assert list(answer.tokens) != source.reference(PROMPT, NEW_TOKENS)


@pytest.mark.parametrize(
    ("parallel", "cache", "named"),
    [
        (ParallelConfig(dp=2), CacheConfig(), "dp: 2"),
        (ParallelConfig(), CacheConfig(dtype="float16"), "dtype: float16"),
        (ParallelConfig(), CacheConfig(memory="VRAM"), "memory: VRAM"),
    ],
    ids=["several engines", "half precision", "an accelerator"],
)
def test_what_this_engine_cannot_be_is_refused(parallel, cache, named):
    with pytest.raises(ConfigurationError, match=named):
        EngineShape(parallel, cache)
