"""The program in front of a progressive fleet: sends each request to a prefill and a decode server at the same time.

``python -m kvweave.serving.proxy --port PORT --prefill URL@CONTROL --decode URL``. vllm-router sends them one after the
other, so that a cache could not move while it is being computed. Rules:

- The decode server's answer is streamed as it comes. A prefill server that refuses is answered for, unless the answer
  has begun.
- When the client leaves, both requests end with it; when the answer is complete, so does what is left of the prefill.
- It listens on loopback only, has at most ``MOST_OPEN`` requests open, and ends every wait.
- What is no completion of one prompt goes to a decode server alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

from kvweave.runtime.transfer import new_transfer_id
from kvweave.serving.pairing import Body, PrefillServer, Turns, decode_body, is_one_prompt, prefill_body
from kvweave.serving.ports import HOST

MOST_OPEN = 1024
MOST_BODY_BYTES = 64 << 20
TOTAL_SECONDS = 3600.0
SILENT_SECONDS = 600.0
CONNECT_SECONDS = 10.0
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")

_PASSED_ON = ("Authorization", "X-Request-Id", "traceparent", "tracestate")


@dataclass(frozen=True, slots=True)
class _Answer:
    """A decode server's answer, once its first bytes are there."""

    response: ClientResponse
    first: bytes


class Proxy:
    """Answers clients; lives in one event loop."""

    def __init__(self, prefill: Sequence[PrefillServer], decode: Sequence[str]) -> None:
        self._ranks = [(server, rank) for server in prefill for rank in range(len(server.peers))]
        self._prefill = prefill
        self._decode = decode
        self._prefill_turns, self._decode_turns = Turns(self._ranks), Turns(decode)
        self._open = 0
        self._session: ClientSession | None = None

    def application(self) -> web.Application:
        """The application for aiohttp's server."""
        application = web.Application(client_max_size=MOST_BODY_BYTES)
        application.cleanup_ctx.append(self._connected)
        application.router.add_get("/health", self._health)
        for path in COMPLETIONS:
            application.router.add_post(path, self._complete)
        application.router.add_route("*", "/{path:.*}", self._pass_on)
        return application

    async def _connected(self, _: web.Application) -> AsyncIterator[None]:
        timeout = ClientTimeout(total=TOTAL_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
        async with ClientSession(timeout=timeout, connector=TCPConnector(limit=0)) as session:
            self._session = session
            yield

    async def _health(self, _: web.Request) -> web.Response:
        """Healthy when all servers are."""
        urls = [*(server.url for server in self._prefill), *self._decode]
        statuses = await asyncio.gather(*(self._status(f"{url}/health") for url in urls))
        return web.Response(status=200 if all(status == 200 for status in statuses) else 503)

    async def _status(self, url: str) -> int:
        try:
            async with self._http.get(url, timeout=ClientTimeout(total=CONNECT_SECONDS)) as response:
                return response.status
        except (ClientError, TimeoutError):
            return 0

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        """A completion: in both servers at once."""
        if self._open >= MOST_OPEN:
            return _refusal(503, f"{MOST_OPEN} requests are open; come back later")
        body = await _read_body(request)
        if body is None:
            return _refusal(400, "the body is not a JSON object")
        self._open += 1
        place = self._decode_turns.take()
        try:
            if not is_one_prompt(body):
                return await self._relay(request, await self._first(request, self._decode[place], body))
            return await self._pair(request, body, self._decode[place])
        except (ClientError, TimeoutError) as error:
            return _refusal(502, f"a server did not answer: {error}")
        finally:
            self._decode_turns.leave(place)
            self._open -= 1

    async def _pair(self, request: web.Request, body: Body, decode: str) -> web.StreamResponse:
        place, transfer_id = self._prefill_turns.take(), new_transfer_id()
        server, rank = self._ranks[place]
        wanted = decode_body(body, transfer_id, server.peers[rank])
        prefilling = asyncio.create_task(self._ask(request, server, rank, prefill_body(body, transfer_id)))
        answering = asyncio.create_task(self._first(request, decode, wanted))
        try:
            await asyncio.wait((prefilling, answering), return_when=asyncio.FIRST_COMPLETED)
            if prefilling.done() and not answering.done():
                status, reply = prefilling.result()
                if status != 200:
                    return web.Response(status=status, body=reply, content_type="application/json")
            return await self._relay(request, await answering)
        finally:
            self._prefill_turns.leave(place)
            await _end(prefilling, answering)

    async def _ask(self, request: web.Request, server: PrefillServer, rank: int, body: Body) -> tuple[int, bytes]:
        """The whole answer of that data parallel rank, whose control channel the decode server is told."""
        headers = _headers(request) | ({"X-data-parallel-rank": str(rank)} if len(server.peers) > 1 else {})
        async with self._http.post(server.url + request.path_qs, json=body, headers=headers) as response:
            return response.status, await response.read()

    async def _first(self, request: web.Request, url: str, body: Body) -> _Answer:
        """An answer, once its first bytes are there."""
        response = await self._http.post(url + request.path_qs, json=body, headers=_headers(request))
        with ExitStack() as stack:
            stack.callback(response.close)
            first = await response.content.readany()
            stack.pop_all()
        return _Answer(response, first)

    async def _relay(self, request: web.Request, answer: _Answer) -> web.StreamResponse:
        """Passes an answer on as it comes; leaves the server when the client leaves."""
        try:
            relayed = web.StreamResponse(status=answer.response.status)
            relayed.headers["Content-Type"] = answer.response.headers.get("Content-Type", "application/json")
            await relayed.prepare(request)
            await relayed.write(answer.first)
            async for piece in answer.response.content.iter_any():
                await relayed.write(piece)
            await relayed.write_eof()
            return relayed
        finally:
            answer.response.close()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """Everything else goes to a decode server as it came."""
        place = self._decode_turns.take()
        headers = _headers(request) | {"Content-Type": request.headers.get("Content-Type", "application/json")}
        try:
            url = self._decode[place] + request.path_qs
            response = await self._http.request(request.method, url, data=await request.read(), headers=headers)
            return await self._relay(request, _Answer(response, b""))
        except (ClientError, TimeoutError) as error:
            return _refusal(502, f"a server did not answer: {error}")
        finally:
            self._decode_turns.leave(place)

    @property
    def _http(self) -> ClientSession:
        if self._session is None:
            raise RuntimeError("proxy: it is not running")
        return self._session


async def _read_body(request: web.Request) -> Body | None:
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Ends what is left of these, and takes what came of the others."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, _Answer):
            ended.response.close()


def _headers(request: web.Request) -> dict[str, str]:
    return {name: request.headers[name] for name in _PASSED_ON if name in request.headers}


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": {"message": text, "code": status}}), content_type="application/json"
    )


@asynccontextmanager
async def listening(proxy: Proxy, port: int) -> AsyncIterator[None]:
    """Listens on loopback until it is left. A client that leaves ends the handling of its request."""
    runner = web.AppRunner(proxy.application(), handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        yield
    finally:
        await runner.cleanup()


async def _serve(proxy: Proxy, port: int) -> None:
    async with listening(proxy, port):
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m kvweave.serving.proxy", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefill", action="append", required=True, type=PrefillServer.parse, metavar="URL@CONTROL")
    parser.add_argument("--decode", action="append", required=True, metavar="URL")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve(Proxy(options.prefill, options.decode), options.port))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
