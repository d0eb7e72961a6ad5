"""Small programs that behave as servers do: they listen, have workers, die, or refuse to end."""

from __future__ import annotations

import sys
from pathlib import Path

HEALTHY_SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

WITH_WORKERS = """
import os, signal, subprocess, sys, time
from pathlib import Path
wait = "import time; time.sleep(600)"
workers = [
    subprocess.Popen([sys.executable, "-c", wait]),
    subprocess.Popen([sys.executable, "-c", wait], start_new_session=True),
]
Path(sys.argv[1]).write_text(" ".join(str(process) for process in [os.getpid(), *(w.pid for w in workers)]))
for name in sys.argv[2:]:
    if name == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if name == "dies":
        sys.exit(3)
time.sleep(600)
"""


TIDIED_UP_AFTER = """
import os, subprocess, sys
tidy = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); print(); sys.stdin.read()\\n"
tidy += "import http.server, sqlite3, xml.dom.minidom; open(sys.argv[1], 'w').write('tidy')"
tidying = subprocess.Popen([sys.executable, "-c", tidy, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
tidying.stdout.readline()
os._exit(0)
"""
"""Leaves a process of its group behind that takes some tenths of a second to tidy up once it has ended."""


def program(text: str, *arguments: object) -> tuple[str, ...]:
    """The command that runs it."""
    return (sys.executable, "-c", text, *map(str, arguments))


def is_alive(process: int) -> bool:
    """Whether a process runs; one that waits for its parent to take notice does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
