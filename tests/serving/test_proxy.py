"""The proxy between a client and servers that only pretend: both asked at once, one answer, nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the proxy needs aiohttp, which vLLM brings")
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from kvweave.serving import proxy as program
from kvweave.serving.pairing import PrefillServer
from kvweave.serving.proxy import Proxy, listening
from tests.serving.own_ports import own_ports

CONTROL = "127.0.0.1:9"
PATIENCE = 20.0
BODY = {"model": "m", "prompt": "hello", "max_tokens": 4}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """A server that answers as it is told, and remembers what it was asked and how that ended."""

    port: int
    answer: Answer
    asked: list[dict[str, Any]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    healthy: bool = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response(status=200 if self.healthy else 503)
        self.asked.append(await request.json() if request.method == "POST" else {"path": request.path})
        try:
            return await self.answer(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def at_once(_: web.Request) -> web.Response:
    return web.json_response({"choices": []})


async def never(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("it is never set")


async def refusing(_: web.Request) -> web.Response:
    return web.json_response({"error": "too long"}, status=400)


async def streaming(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for word in (b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n"):
        await response.write(word)
    return response


@dataclass
class World:
    """A client, the proxy, and a server behind it on either side."""

    client: ClientSession
    url: str
    prefill: Server
    decode: Server

    async def ask(self, body: object = BODY, path: str = "/v1/completions") -> tuple[int, str, bytes]:
        async with self.client.post(self.url + path, json=body) as response:
            return response.status, response.headers["Content-Type"], await response.read()


@asynccontextmanager
async def running(prefill: Answer = at_once, decode: Answer = at_once) -> AsyncIterator[World]:
    first = own_ports(3)
    servers = [Server(first + 1, prefill), Server(first + 2, decode)]
    runners = []
    for server in servers:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", server.handle)
        runners.append(web.AppRunner(application, handler_cancellation=True, access_log=None))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", server.port).start()
    front = Proxy([PrefillServer(servers[0].url, (CONTROL,))], [servers[1].url])
    try:
        async with listening(front, first), ClientSession(timeout=ClientTimeout(total=PATIENCE)) as client:
            yield World(client, f"http://127.0.0.1:{first}", *servers)
    finally:
        for runner in runners:
            await runner.cleanup()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


def test_both_servers_are_asked_under_one_id_and_the_decode_server_answers() -> None:
    async def test() -> None:
        async with running() as world:
            status, kind, answer = await world.ask()
            assert (status, kind, json.loads(answer)) == (200, "application/json; charset=utf-8", {"choices": []})
            (prefill,), (decode,) = world.prefill.asked, world.decode.asked
            ours = decode["kv_transfer_params"]["kvweave"]
            assert ours == prefill["kv_transfer_params"]["kvweave"] | {"peer": CONTROL}
            assert (prefill["max_tokens"], decode["max_tokens"]) == (1, 4)

    run(test())


def test_no_two_requests_share_an_id() -> None:
    async def test() -> None:
        async with running() as world:
            for _ in range(3):
                await world.ask()
            ids = {asked["kv_transfer_params"]["kvweave"]["transfer_id"] for asked in world.decode.asked}
            assert len(ids) == 3

    run(test())


def test_a_stream_is_passed_on() -> None:
    async def test() -> None:
        async with running(decode=streaming) as world:
            status, kind, answer = await world.ask(BODY | {"stream": True}, "/v1/chat/completions")
            assert (status, kind) == (200, "text/event-stream")
            assert answer.endswith(b"data: two\n\ndata: [DONE]\n\n")

    run(test())


def test_what_the_prefill_server_refuses_is_refused_and_the_decode_server_left() -> None:
    async def test() -> None:
        async with running(prefill=refusing, decode=never) as world:
            status, _, answer = await world.ask()
            assert (status, json.loads(answer)) == (400, {"error": "too long"})
            await world.decode.cancelled.wait()

    run(test())


def test_what_the_decode_server_refuses_is_refused_and_the_prefill_server_left() -> None:
    async def test() -> None:
        async with running(prefill=never, decode=refusing) as world:
            assert (await world.ask())[0] == 400
            await world.prefill.cancelled.wait()

    run(test())


def test_a_client_that_leaves_ends_both_requests() -> None:
    async def test() -> None:
        async with running(prefill=never, decode=never) as world:
            asking = asyncio.create_task(world.ask())
            while not (world.prefill.asked and world.decode.asked):
                await asyncio.sleep(0)
            asking.cancel()
            await world.prefill.cancelled.wait()
            await world.decode.cancelled.wait()

    run(test())


def test_several_prompts_go_to_the_decode_server_alone() -> None:
    async def test() -> None:
        async with running() as world:
            await world.ask(BODY | {"prompt": ["one", "two"]})
            assert world.prefill.asked == []
            assert "kv_transfer_params" not in world.decode.asked[0]

    run(test())


def test_other_questions_go_to_a_decode_server() -> None:
    async def test() -> None:
        async with running() as world, world.client.get(f"{world.url}/v1/models") as response:
            assert (response.status, world.decode.asked) == (200, [{"path": "/v1/models"}])

    run(test())


@pytest.mark.parametrize("healthy", [True, False])
def test_it_is_healthy_when_all_servers_are(healthy: bool) -> None:
    async def test() -> None:
        async with running() as world:
            world.prefill.healthy = healthy
            async with world.client.get(f"{world.url}/health") as response:
                assert response.status == (200 if healthy else 503)

    run(test())


@pytest.mark.parametrize("data", [b"no json", b"[1]", b"[" * 100_000], ids=["no JSON", "no object", "too deep"])
def test_what_is_no_request_is_refused(data: bytes) -> None:
    async def test() -> None:
        async with running() as world, world.client.post(f"{world.url}/v1/completions", data=data) as response:
            assert response.status == 400
            assert world.decode.asked == []

    run(test())


def test_more_than_can_be_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MOST_OPEN", 1)

    async def test() -> None:
        async with running(prefill=never, decode=never) as world:
            asking = asyncio.create_task(world.ask())
            while not world.decode.asked:
                await asyncio.sleep(0)
            assert (await world.ask())[0] == 503
            asking.cancel()
            await world.decode.cancelled.wait()

    run(test())


def test_servers_that_are_gone_are_named() -> None:
    async def test() -> None:
        first = own_ports(3)
        front = Proxy([PrefillServer(f"http://127.0.0.1:{first + 1}", (CONTROL,))], [f"http://127.0.0.1:{first + 2}"])
        async with listening(front, first), ClientSession() as client:
            async with client.post(f"http://127.0.0.1:{first}/v1/completions", json=BODY) as response:
                assert response.status == 502
                assert "did not answer" in (await response.json())["error"]["message"]
            async with client.get(f"http://127.0.0.1:{first}/health") as response:
                assert response.status == 503

    run(test())


def test_nothing_answers_when_it_has_ended() -> None:
    async def test() -> None:
        async with running() as world:
            url = world.url
        async with ClientSession() as client:
            with pytest.raises(ClientError):
                await client.get(f"{url}/health")

    run(test())
