"""One pair by hand: ``python -m tests.e2e.vllm MODEL --prefill tp=2,block=64 --decode tp=1,block=128``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.e2e.vllm.check import check_pair
from tests.e2e.vllm.models import MODELS, served_model
from tests.e2e.vllm.prompts import edge_lengths, prompt_of, sweep_prompts
from tests.e2e.vllm.proxy import metrics
from tests.e2e.vllm.servers import Deployment, deploy, kvweave, running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--prefill", default="tp=1")
    parser.add_argument("--decode", default="tp=1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "kvweave-e2e")
    parser.add_argument("--edges", type=int, default=0, help="prompts where a window of so many tokens meets a block")
    options = parser.parse_args()
    prompts = sweep_prompts()
    if options.edges:
        prompts = [prompt_of(length) for length in edge_lengths(options.edges, (32, 128), 700)]
    folder = served_model(options.model, options.folder / "models")
    pair: list[Deployment] = [
        deploy("prefill", options.model, folder, options.prefill, kvweave("kv_producer")),
        deploy("decode", options.model, folder, options.decode, kvweave("kv_consumer")),
    ]
    logs = options.folder / f"{options.model} {options.prefill} {options.decode}"
    with running(pair, logs) as (prefill, decode):
        reports = check_pair(prefill.url, decode.url, prompts)
        for server in (prefill, decode):
            counted = {name: value for name, value in metrics(server.url).items() if _shown(name) and value}
            print(server.deployment.name, counted)
    return 0 if all(report.ok for report in reports) else 1


def _shown(name: str) -> bool:
    return "kvweave" in name and not name.split("{", maxsplit=1)[0].endswith(("_bucket", "_created"))


if __name__ == "__main__":
    sys.exit(main())
