"""The options that the commands share, and what becomes of them: engine texts and model names to layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from kvweave.cli.engine_text import EngineDescription, known_keys, parse_engine
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.errors import ConfigurationError, KVWeaveError, LayoutError
from kvweave.models import load

ENGINE_HELP = "short text such as tp=4,block=16,layout=HND, or a YAML file"
KEYS_HELP = f"Keys of an engine: {known_keys()}."

Model = Annotated[
    str, typer.Option("--model", "-m", metavar="MODEL", help="A preset, a config.json, or a folder with one.")
]
Prefill = Annotated[str, typer.Option("--prefill", "-p", metavar="ENGINE", help=f"The prefill engine: {ENGINE_HELP}.")]
Decode = Annotated[str, typer.Option("--decode", "-d", metavar="ENGINE", help=f"The decode engine: {ENGINE_HELP}.")]
AsDocument = Annotated[bool, typer.Option("--json", help="Print a document for programs.")]

_LEAST_BLOCKS = 1024
_MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines as described; ``models`` are the texts that name what each serves."""

    prefill: EngineDescription
    decode: EngineDescription
    models: tuple[str, str]

    @property
    def span_tokens(self) -> int:
        """Tokens that one block reaches over, on the side where it reaches further."""
        return max(side.cache.block_size * side.parallel.dcp for side in (self.prefill, self.decode))

    def layouts(self, num_tokens: int) -> tuple[EngineLayout, EngineLayout]:
        """Both layouts, with room for a request of that many tokens where the user stated no number of blocks.

        Raises ``ConfigurationError`` and ``LayoutError`` that name the side.
        """
        sides = (("--prefill", self.prefill), ("--decode", self.decode))
        prefill, decode = (
            _build(option, engine, model, num_tokens)
            for (option, engine), model in zip(sides, self.models, strict=True)
        )
        return prefill, decode


def parse_pair(prefill: str, decode: str, prefill_model: str, decode_model: str) -> Pair:
    """Both engines from their texts; an error names the option that it is about."""
    return Pair(parse_option("--prefill", prefill), parse_option("--decode", decode), (prefill_model, decode_model))


def parse_rank(text: str) -> RankCoordinates:
    """A rank such as ``tp=1`` or ``pp=1,tp=3``.

    >>> parse_rank("pp=1,tp=3")
    RankCoordinates(pp=1, pcp=0, tp=3)
    """
    found: dict[str, int] = {}
    for item in text.split(","):
        name, _, value = (piece.strip() for piece in item.partition("="))
        if name not in ("pp", "pcp", "tp") or not _is_number(value):
            raise ConfigurationError(
                f"--target: {item.strip()!r} is no rank coordinate; write pp=, pcp= or tp= and a number from 0"
            )
        if name in found:
            raise ConfigurationError(f"--target: {name} stated twice; state it once")
        found[name] = int(value)
    return RankCoordinates(**found)


def parse_tokens(text: str | None) -> int | None:
    """The number of ``--tokens``; None where it is not stated.

    >>> parse_tokens("8000")
    8000
    """
    if text is None:
        return None
    if not _is_number(text) or not 1 <= int(text) <= _MOST_TOKENS:
        raise ConfigurationError(
            f"--tokens: {text!r} is not a whole number from 1 to {_MOST_TOKENS}; state a request's length"
        )
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def describe_engine(layout: EngineLayout) -> str:
    """An engine in one line, defaults left out.

    >>> from kvweave.core.parallel import ParallelConfig
    >>> describe_engine(EngineLayout.build(load("llama-3.1-8b"), ParallelConfig(tp=4)))
    'tp=4, block 16, LBHNC'
    """
    parallel = layout.parallel
    sizes = {"tp": parallel.tp, "pp": parallel.pp, "dcp": parallel.dcp, "pcp": parallel.pcp, "dp": parallel.dp}
    words = [f"{name}={size}" for name, size in sizes.items() if size > 1 or name == "tp"]
    if layout.cache is not None:
        words += [f"block {layout.cache.block_size}", str(layout.cache.layout)]
    return ", ".join(words)


def parse_option(option: str, text: str) -> EngineDescription:
    """The engine of an option's text; an error names the option."""
    try:
        return parse_engine(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{option}: {error}") from None


def _build(option: str, engine: EngineDescription, model: str, num_tokens: int) -> EngineLayout:
    cache = engine.cache
    if not engine.states_num_blocks:
        cache = replace(cache, num_blocks=max(_LEAST_BLOCKS, -(-num_tokens // cache.block_size)))
    loaded = load(model, **engine.model_options)
    try:
        return EngineLayout.build(loaded, engine.parallel, cache)
    except KVWeaveError as error:
        raise LayoutError(f"{option}: {error}") from None
