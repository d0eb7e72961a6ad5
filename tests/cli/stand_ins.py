"""Programs that stand in for vLLM and vllm-router: they listen where they are told and answer as the real ones do.

``STAND_IN_FAULT`` names a role and what goes wrong: ``decode dies``, ``decode leaves`` (dies once it was asked),
``router refuses`` (answers chats with 400, as models without a chat template do), ``router fails`` (answers nothing).
"""

from __future__ import annotations

from pathlib import Path

SERVER = """
import http.server, json, os, sys, threading

words = sys.argv[1:]
port = int(words[words.index("--port") + 1])
config = words[words.index("--kv-transfer-config") + 1] if "--kv-transfer-config" in words else ""
role = {"kv_p": "prefill", "kv_c": "decode"}[json.loads(config)["kv_role"][:4]] if config else "router"
faulty, _, fault = os.environ.get("STAND_IN_FAULT", "").partition(" ")
fault = fault if faulty == role else ""

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": "the-model"}]}))
        if fault == "leaves":
            print("RuntimeError: out of memory", flush=True)
            os._exit(4)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        refused = fault == "fails" or (fault == "refuses" and "chat" in self.path)
        self.answer(400 if refused else 200, "no" if refused else body)

    def answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass

print(role, "with", " ".join(words), flush=True)
if fault == "dies":
    print("ValueError: no such block size", flush=True)
    sys.exit(3)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def install(folder: Path, python: str) -> dict[str, str]:
    """Puts them into ``folder``; the environment variables under which they are found."""
    package = folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for each in (package, package.parent, package.parent.parent):
        (each / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVER)
    (folder / "vllm_router").mkdir()
    (folder / "vllm_router" / "__init__.py").touch()
    router = folder / "vllm-router"
    router.write_text(f"#!{python}\n{SERVER}")
    router.chmod(0o755)
    return {"PYTHONPATH": str(folder), "PATH": str(folder)}
