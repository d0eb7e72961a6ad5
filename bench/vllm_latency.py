"""Time to first token on the decode side, against NixlConnector: ``python -m bench.vllm_latency [--json]``.

Two pairs of vLLM servers stand side by side, of one model and one shape. Each has computed a plain prompt before, so
that what vLLM itself does once is over. Then both get the same prompts in turn, one request at a time, the order of
the two changing with every prompt. A request goes to the prefill server and with its answer to the decode server; what
counts is the time from sending the latter to its first token, and what either connector says of its transfers.

With ``--fragmented`` the prompts are long, and many requests at once have used the pools before, so that blocks which
are free lie in no order: ``--fragmented --model llama-deep --prefill tp=2,block=32 --decode tp=1,block=32``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import nan
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.e2e.vllm.prompts import prompt_of
from tests.e2e.vllm.proxy import complete, metrics, prefill, together
from tests.e2e.vllm.results import INCUMBENT, OURS, versions

from bench.vllm_pairs import Pair, both_pairs
from kvweave.version import __version__

PROMPTS = 30
TENTH = 9
MAX_TOKENS = 8
PAUSE_SECONDS = 0.1
RATIO_LIMIT, EXCESS_LIMIT = 1.05, 0.5
LENGTHS = (257, 511, 640, 900, 1200)
LONG_LENGTHS = (1500, 1700, 1900)
FRAGMENTED_RATIO_LIMIT, TRANSFER_RATIO_LIMIT = 1.0, 0.5
PARTS = ("sum", "count")
FRAGMENTING_REQUESTS, FRAGMENTING_AT_ONCE = 60, 12
TRANSFERS = {
    OURS: ("vllm:kvweave_transfer_seconds", "vllm:kvweave_wait_seconds"),
    INCUMBENT: ("vllm:nixl_xfer_time_seconds",),
}
"""What the mean of one transfer is the sum of. Ours is of a whole request, from its first post to its delivery, and the
waits before it; the incumbent's is of one of a request's reads, of which there is one for every source rank."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: seconds on either side, what was answered, and how long its transfer took."""

    prefill_seconds: float
    first_token_seconds: float
    tokens: tuple[int, ...]
    transfer_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """One round of both pairs: seconds to the first token in the order of the prompts, by pair."""

    samples: dict[str, list[Sample]]

    @property
    def ratio(self) -> float:
        """Our median time to first token by the incumbent's."""
        return self.median(OURS) / self.median(INCUMBENT)

    @property
    def total_ratio(self) -> float:
        """The same of prefill and decode together."""
        return _total(self.samples[OURS]) / _total(self.samples[INCUMBENT])

    @property
    def excess_ratio(self) -> float:
        """Our first request's excess over the tenth by the incumbent's; below 0 where ours has none."""
        return self.excess(OURS) / self.excess(INCUMBENT)

    @property
    def transfer_ratio(self) -> float:
        """Our median transfer by the incumbent's."""
        ours, theirs = (median(sample.transfer_seconds for sample in self.samples[name]) for name in (OURS, INCUMBENT))
        return ours / theirs if theirs else nan

    @property
    def different(self) -> int:
        """How many prompts the two answered with different tokens."""
        return sum(one.tokens != other.tokens for one, other in zip(*self.samples.values(), strict=True))

    def median(self, pair: str) -> float:
        """The median time to first token."""
        return median(sample.first_token_seconds for sample in self.samples[pair])

    def excess(self, pair: str) -> float:
        """By how much the first request took longer than the tenth."""
        samples = self.samples[pair]
        return samples[0].first_token_seconds - samples[TENTH].first_token_seconds


def measure(pairs: Sequence[Pair], prompts: Sequence[Sequence[int]], fragmented: bool = False) -> Result:
    """Sends every prompt through both pairs, one request at a time."""
    for pair in pairs:
        for server in (pair.prefill, pair.decode):
            for seed, length in enumerate(LENGTHS):
                complete(server.url, prompt_of(length, seed=900 + seed), MAX_TOKENS)
            if fragmented:
                fragment(server.url)
    samples: dict[str, list[Sample]] = {pair.name: [] for pair in pairs}
    for number, prompt in enumerate(prompts):
        for pair in pairs if number % 2 == 0 else reversed(pairs):
            samples[pair.name].append(_sample(pair, prompt))
            time.sleep(PAUSE_SECONDS)
    return Result(samples)


def fragment(url: str) -> None:
    """Leaves a server's free blocks in no order: requests of many lengths take turns at taking and freeing them."""
    prompts = [prompt_of(33 + 61 * number % 1400, seed=2000 + number) for number in range(FRAGMENTING_REQUESTS)]
    calls = [partial(complete, url, prompt, 1 + number % 7) for number, prompt in enumerate(prompts)]
    together(calls, FRAGMENTING_AT_ONCE)


def prompts_of(count: int, round_number: int, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Prompts that have nothing in common and are of a few lengths."""
    return [prompt_of(lengths[number % len(lengths)], seed=number + 100 * round_number) for number in range(count)]


def verdict(results: Sequence[Result]) -> dict[str, Any]:
    """The medians over all rounds, what they may be, and whether all is well."""
    limits = {"median_ratio": ("ratio", RATIO_LIMIT), "first_excess_ratio": ("excess_ratio", EXCESS_LIMIT)}
    return _verdict(results, limits) | {"total_ratio": median(r.total_ratio for r in results)}


def verdict_fragmented(results: Sequence[Result]) -> dict[str, Any]:
    """The same for long prompts in fragmented pools: transfers count, too, and the first request does not."""
    limits = {
        "median_ratio": ("ratio", FRAGMENTED_RATIO_LIMIT), "transfer_ratio": ("transfer_ratio", TRANSFER_RATIO_LIMIT),
    }  # fmt: skip
    return _verdict(results, limits)


def main() -> int:
    options = _options()
    progress = Console(stderr=True)
    results = []
    for number in range(options.rounds):
        with both_pairs(
            options.model, options.folder, (options.prefill, options.decode), not options.strangers, progress.print
        ) as pairs:
            prompts = prompts_of(options.prompts, number, LONG_LENGTHS if options.fragmented else LENGTHS)
            results.append(measure(pairs, prompts, options.fragmented))
        progress.print(f"round {number + 1}: ratio {results[-1].ratio:.3f}, excess {results[-1].excess_ratio:.3f}")
    document = _document(results, options)
    if options.json:
        json.dump(document, sys.stdout)
    else:
        Console().print(_table(results, options))
        Console().print(", ".join(f"{name} {value}" for name, value in document["versions"].items()))
    return 0 if document["ok"] else 1


def _verdict(results: Sequence[Result], limits: Mapping[str, tuple[str, float]]) -> dict[str, Any]:
    """By the name in the document: which property of a round counts, and what its median may be."""
    found: dict[str, Any] = {}
    for name, (measured, limit) in limits.items():
        found |= {name: median(getattr(result, measured) for result in results), f"{name}_limit": limit}
    different = sum(result.different for result in results)
    ok = not different and all(found[name] <= found[f"{name}_limit"] for name in limits)
    return found | {"different": different, "ok": ok}


def _sample(pair: Pair, prompt: Sequence[int]) -> Sample:
    before = _transfers(pair)
    began = time.perf_counter()
    offered = prefill(pair.prefill.url, prompt)
    prefilled = time.perf_counter()
    stream = _streamed(pair.decode.port, prompt, offered.params)
    tokens = list(next(stream))
    first = time.perf_counter()
    for more in stream:
        tokens += more
    return Sample(prefilled - began, first - prefilled, tuple(tokens), _mean_between(before, _transfers(pair)))


def _transfers(pair: Pair) -> list[tuple[float, float]]:
    """Sum and number of every histogram that says how long the pair's transfers took."""
    found = metrics(pair.decode.url)
    return [
        tuple(sum(value for key, value in found.items() if key.split("{")[0] == f"{name}_{part}") for part in PARTS)
        for name in TRANSFERS[pair.name]
    ]


def _mean_between(before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]) -> float:
    return sum(
        (total - earlier) / max(count - fewer, 1)
        for (earlier, fewer), (total, count) in zip(before, after, strict=True)
    )


def _streamed(port: int, prompt: Sequence[int], params: dict[str, Any] | None) -> Iterator[list[int]]:
    """Sends a request and yields its tokens as they come."""
    body = {
        "model": "model", "prompt": list(prompt), "max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True,
        "return_token_ids": True, "stream": True, "kv_transfer_params": params,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"HTTP {reply.status}: {reply.read().decode(errors='replace')[:500]}")
        for line in reply:
            text = line.decode().removeprefix("data: ").strip()
            if text and text != "[DONE]":
                choices = json.loads(text)["choices"]
                if choices and choices[0].get("token_ids"):
                    yield choices[0]["token_ids"]
    finally:
        connection.close()


def _total(samples: Sequence[Sample]) -> float:
    return median(sample.prefill_seconds + sample.first_token_seconds for sample in samples)


def _document(results: Sequence[Result], options: argparse.Namespace) -> dict[str, Any]:
    return {
        "schema": "kvweave.bench.vllm/1",
        "model": options.model, "prefill": options.prefill, "decode": options.decode, "prompts": options.prompts,
        "peer_named": not options.strangers,
        "versions": {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "kvweave": __version__, **versions()},
        "fragmented": options.fragmented,
        **(verdict_fragmented(results) if options.fragmented else verdict(results)),
        "rounds": [
            {name: [asdict(sample) for sample in samples] for name, samples in result.samples.items()}
            for result in results
        ],
    }  # fmt: skip


def _table(results: Sequence[Result], options: argparse.Namespace) -> Table:
    title = f"Decode side, {options.model} {options.prefill} > {options.decode}, {options.prompts} prompts (ms)"
    table = Table("round", "", OURS, INCUMBENT, "ratio", "limit", title=title)
    for number, result in enumerate(results, 1):
        ours, theirs = result.samples[OURS], result.samples[INCUMBENT]
        limit = FRAGMENTED_RATIO_LIMIT if options.fragmented else RATIO_LIMIT
        transfers = [median(sample.transfer_seconds for sample in samples) for samples in (ours, theirs)]
        transfer_limit = TRANSFER_RATIO_LIMIT if options.fragmented else None
        lines: tuple[tuple[str, float, float, float | None, float | None], ...] = (
            ("time to first token, median", result.median(OURS), result.median(INCUMBENT), result.ratio, limit),
            ("transfer, median", *transfers, result.transfer_ratio, transfer_limit),
            ("prefill and first token, median", _total(ours), _total(theirs), result.total_ratio, None),
            ("first request", ours[0].first_token_seconds, theirs[0].first_token_seconds, None, None),
            (
                "first request's excess over the tenth", result.excess(OURS), result.excess(INCUMBENT),
                result.excess_ratio, None if options.fragmented else EXCESS_LIMIT,
            ),
        )  # fmt: skip
        for name, our, their, ratio, limit in lines:
            shown = ("" if value is None else f"{value:.2f}" for value in (ratio, limit))
            table.add_row(str(number), name, f"{1000 * our:.1f}", f"{1000 * their:.1f}", *shown)
        table.add_row(str(number), "prompts answered differently", str(result.different), "", "", "0")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.vllm_latency", description=__doc__)
    parser.add_argument(
        "--model", default="smollm2", help="llama is tiny: what is left are the waits between processes"
    )
    parser.add_argument("--prefill", default="tp=1")
    parser.add_argument("--decode", default="tp=1")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--rounds", type=int, default=1, help="starts of the servers; the medians of all count")
    parser.add_argument("--strangers", action="store_true", help="our decode server does not know its peer beforehand")
    parser.add_argument(
        "--fragmented", action="store_true", help="long prompts, and pools whose blocks lie in no order"
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "kvweave-e2e")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
