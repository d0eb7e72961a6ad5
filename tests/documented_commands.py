"""The commands that documents and examples show: of shell blocks, and of the containers in Kubernetes manifests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
MANIFESTS = sorted((ROOT / "examples").rglob("*.yaml"))
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("vllm", "vllm-router", "kvweave")


@dataclass(frozen=True)
class Shown:
    """One command: where it is shown, and its words."""

    place: str
    words: tuple[str, ...]

    def values(self, option: str) -> list[str]:
        """The value behind each occurrence of an option, or joined to it by ``=``."""
        joined = [word.partition("=")[2] for word in self.words if word.startswith(f"{option}=")]
        apart = [self.words[number + 1] for number, word in enumerate(self.words[:-1]) if word == option]
        return joined + apart

    def __str__(self) -> str:
        return f"{self.place}: {' '.join(self.words)[:60]}"


def shown_commands(program: str) -> list[Shown]:
    """All commands of a program that are shown anywhere."""
    found = [*_in_documents(), *(command for path in MANIFESTS for command in _in_manifest(path))]
    return [command for command in found if command.words[0] == program]


def transfer_configs() -> list[tuple[str, dict[str, Any]]]:
    """Every ``--kv-transfer-config`` that is shown, with its place."""
    return [
        (command.place, json.loads(value))
        for command in shown_commands("vllm")
        for value in command.values("--kv-transfer-config")
    ]


def _in_documents() -> Iterator[Shown]:
    for path in DOCUMENTS:
        for block in _SHELL.findall(path.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
                    words = words[1:]
                if words and words[0] in _PROGRAMS:
                    yield Shown(str(path.relative_to(ROOT)), tuple(words))


def _in_manifest(path: Path) -> Iterator[Shown]:
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        template = document["spec"].get("template")
        for container in template["spec"]["containers"] if template else ():
            words = [*container["command"], *container["args"]]
            yield Shown(f"{path.relative_to(ROOT)} {document['metadata']['name']}", tuple(words))
