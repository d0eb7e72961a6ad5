"""A NIXL source in a process of its own: registers a file's memory, says where it is, makes progress until told to end.

Usage: python nixl_source.py NAME FILE. Writes one line, the address and the agent data in hexadecimal; ends with its
standard input.
"""

from __future__ import annotations

import select
import sys

import numpy as np

from kvweave.core.layout import Region
from kvweave.transport.nixl import NixlTransport


def main(name: str, file: str) -> None:
    memory = np.memmap(file, np.uint8, mode="r+")
    transport = NixlTransport(name)
    transport.register([Region(memory.ctypes.data, memory.nbytes)])
    sys.stdout.write(f"{memory.ctypes.data} {transport.agent_data().hex()}\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0.0005)[0]:
        transport.progress()
    transport.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
