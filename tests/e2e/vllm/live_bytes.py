"""Compares the bytes that prefill servers hold at an offer with those that decode servers hold at its delivery.

For models whose tokens differ from run to run on a CPU even in one server. By hand::

    python -m tests.e2e.vllm.live_bytes qwen3-next --prefill tp=2 --decode tp=1

and in a program ``check_bytes("qwen3-next", "tp=2", "tp=1", folder)``, which starts both servers with the recording
connector (``recording``), sends prompts through them and returns a ``BytesReport``: ``compared`` and ``wrong`` bytes,
``ok``, and a text that names the first wrong ones. Tiny models are kept in ``KVWEAVE_E2E_MODELS``, or in
``folder/models``; logs and records go to ``folder``, and records are removed when they are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.vllm.live_slices import Piece, Record, pieces
from tests.e2e.vllm.models import MODELS, served_model
from tests.e2e.vllm.prompts import LENGTHS, prompt_of, sweep_prompts
from tests.e2e.vllm.proxy import Answer, through, together
from tests.e2e.vllm.servers import Deployment, deploy, kvweave, running

ROOT = Path(__file__).parents[3]
SHOWN = 10
UNSHARED = 11
"""Seed of the prompts of the first round, none of which begins like another: every one of them must be transferred."""


@dataclass(frozen=True)
class Wrong:
    """Bytes of one token (None: of a state) that are on no prefill rank what they are on a decode rank."""

    request: str
    rank: str
    layer: int
    part: str
    head: int
    token: int | None
    nbytes: int

    def __str__(self) -> str:
        where = "state" if self.token is None else f"token {self.token}"
        return (
            f"{self.rank}: layer {self.layer} {self.part} head {self.head}, {where}: {self.nbytes} bytes differ "
            f"({self.request})"
        )


@dataclass(frozen=True)
class BytesReport:
    """What a comparison found. ``problems`` are missing records, other ranges of tokens, source bytes never written."""

    requests: int
    compared: int
    wrong: int
    differences: tuple[Wrong, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Something was compared, and nothing was found wrong."""
        return self.compared > 0 and not self.wrong and not self.problems

    def __str__(self) -> str:
        lines = [f"{self.requests} transfers, {self.compared} bytes compared, {self.wrong} wrong"]
        lines += [f"  {found}" for found in self.differences[:SHOWN]]
        lines += [f"  {problem}" for problem in self.problems[:SHOWN]]
        return "\n".join(lines)


def recording(role: str, folder: Path, policy: str = "fail", **extra: object) -> dict[str, Any]:
    """The recording connector's configuration; the server needs ``ROOT`` in its ``PYTHONPATH``."""
    return kvweave(role, policy, recording_folder=str(folder), **extra) | {
        "kv_connector": "RecordingConnector", "kv_connector_module_path": "tests.e2e.vllm.recording",
    }  # fmt: skip


def check_bytes(model: str, prefill: str, decode: str, folder: Path, models: Path | None = None) -> BytesReport:
    """Starts a pair of servers of these shapes (``tp=2``) and compares the bytes of everything that they transfer.

    ``model`` is one of ``models.MODELS`` with MLA, gated delta nets or plain attention; ``models`` is where tiny models
    are kept.
    """
    stated = os.environ.get("KVWEAVE_E2E_MODELS")
    served = served_model(model, models or (Path(stated) if stated else folder / "models"))
    records = folder / f"records {model} {prefill} {decode}"
    shutil.rmtree(records, ignore_errors=True)
    with running(_pair(model, served, prefill, decode, records), folder / f"bytes {model} {prefill} {decode}") as pair:
        problems = _send(pair[0].url, pair[1].url, records)
    report = compare_records(json.loads((served / "config.json").read_text()), records, problems)
    if report.ok:
        shutil.rmtree(records)
    return report


def compare_records(config: Mapping[str, Any], folder: Path, problems: Sequence[str] = ()) -> BytesReport:
    """Compares all deliveries that were saved in a folder with their offers."""
    found, differences, compared, requests = list(problems), [], 0, 0
    for name, sources, targets in _transfers(folder):
        requests += 1
        found += _range_problems(config, name, sources, targets)
        held: dict[Any, list[Piece]] = defaultdict(list)
        for source in sources:
            for piece in pieces(config, source):
                held[piece.key].append(piece)
        for target in targets:
            for piece in pieces(config, target):
                first = 0 if piece.is_state else target.facts["first"]
                wanted = piece.values[first:]
                compared += wanted.size
                candidates = [other.values[first : len(piece.values)] for other in held[piece.key]]
                if any(not other.any() for other in candidates):
                    found.append(f"{name}: layer {piece.layer} {piece.part} head {piece.head} holds zeros only")
                differences += _differences(name, target.rank, piece, wanted, candidates, first)
    return BytesReport(requests, compared, sum(one.nbytes for one in differences), tuple(differences), tuple(found))


def _differences(
    name: str, rank: str, piece: Piece, wanted: Any, candidates: Sequence[Any], first: int
) -> Iterator[Wrong]:
    """The bytes that differ from the replica that is most like them; a piece is read whole from one replica."""
    unequal = [wanted != other for other in candidates if other.shape == wanted.shape]
    closest = min(unequal, key=np.count_nonzero, default=np.ones(wanted.shape, dtype=bool))
    for place in np.flatnonzero(closest.any(axis=1)).tolist():
        token = None if piece.is_state else first + place
        yield Wrong(name, rank, piece.layer, piece.part, piece.head, token, int(closest[place].sum()))


def _transfers(folder: Path) -> Iterator[tuple[str, list[Record], list[Record]]]:
    """The records of each request that was delivered: of all prefill ranks and of all decode ranks."""
    files = _files(folder)
    for kind, name in sorted(files):
        if kind == "delivery":
            offers = [Record.read(path) for path in files.get(("offer", name), ())]
            yield name, offers, [Record.read(path) for path in files[kind, name]]


def _files(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """The records by what happened and by request."""
    files: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in sorted(folder.glob("*.npz")):
        kind, name, _ = path.stem.split(" ", maxsplit=2)
        files[kind, name].append(path)
    return files


def _range_problems(
    config: Mapping[str, Any], name: str, sources: Sequence[Record], targets: Sequence[Record]
) -> Iterator[str]:
    """Ranks or layers without a record, and other tokens than all but the prompt's last one."""
    for side, records in (("offered", sources), ("delivered", targets)):
        stages = {record.facts["pp"] for record in records}
        ranks = {(pp, tp) for pp in stages for tp in range(records[0].facts["tp_size"])} if records else {(0, 0)}
        if missing := ranks - {(record.facts["pp"], record.facts["tp"]) for record in records}:
            yield f"{name}: {side}, but without a record of ranks {sorted(missing)}"
        layers = {layer["name"] for record in records for layer in record.facts["layers"]}
        if len(layers) != config["num_hidden_layers"]:
            yield f"{name}: {len(layers)} layers {side}, the model has {config['num_hidden_layers']}"
    moving = "linear_attention" in config.get("layer_types", ())
    for target in targets:
        wanted = target.facts["prompt_tokens"] - 1
        if target.facts["stop"] != wanted:
            yield f"{name}: {target.rank} has {target.facts['stop']} tokens after its load, wanted {wanted}"
    for source in sources:
        stop, wanted = source.facts["stop"], targets[0].facts["stop"]
        if stop != wanted if moving else stop < wanted:
            yield f"{name}: {source.rank} offers the state after {stop} tokens, wanted {wanted}"


def _pair(model: str, served: Path, prefill: str, decode: str, records: Path) -> list[Deployment]:
    known = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    return [
        replace(deploy(name, model, served, shape, recording(role, records)), environment=known)
        for name, shape, role in (("prefill", prefill, "kv_producer"), ("decode", decode, "kv_consumer"))
    ]


def _send(prefill_url: str, decode_url: str, records: Path) -> list[str]:
    """Sends prompts of many lengths, then some with shared beginnings twice; what was not answered or not loaded."""
    unshared = [prompt_of(length, seed=UNSHARED) for length in LENGTHS]
    problems = _round(prefill_url, decode_url, unshared)
    loaded = sum(kind == "delivery" for kind, _ in _files(records))
    wanted = sum(len(prompt) > 1 for prompt in unshared)
    if loaded != wanted:
        problems.append(f"{loaded} of {wanted} prompts without a shared beginning were delivered")
    for _ in range(2):
        problems += _round(prefill_url, decode_url, sweep_prompts())
    return problems


def _round(prefill_url: str, decode_url: str, prompts: Sequence[list[int]]) -> list[str]:
    answers = together([lambda p=prompt: through(prefill_url, decode_url, p, 4) for prompt in prompts], 4)
    failures = [_failure(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return [failure for failure in failures if failure]


def _failure(prompt: Sequence[int], answer: Answer) -> str:
    return "" if answer.status == 200 else f"{len(prompt)} tokens: HTTP {answer.status}: {answer.error[:300]}"


def main() -> int:
    """One pair by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--prefill", default="tp=1")
    parser.add_argument("--decode", default="tp=1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "kvweave-e2e")
    options = parser.parse_args()
    report = check_bytes(options.model, options.prefill, options.decode, options.folder)
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
