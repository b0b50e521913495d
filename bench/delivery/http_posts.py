"""POSTs by one HTTP client: `python -m bench.delivery.http_posts CLIENT URL COUNT CONNECTIONS CA_FILE`.

Says how many a second were answered and the CPU time of each. Clients other than aiohttp, httpx2 and ours are not among
the requirements: a missing one says so (`pip install aiosonic niquests pycurl pyreqwest rnet` adds them).
"""

import asyncio
import importlib.util
import io
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.delivery.content import Took
from bench.engines import run, settle
from bench.processes import say

Post = Callable[[], Awaitable[int]]  # one POST; returns the status
HEADERS = {
    "Content-Type": "application/json",
    "webhook-id": "n_0000000000000001_00000000002a:user-42/1",
    "webhook-timestamp": "1763371000",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}
BODY = b'{"type":"reminder","user":"user-42","data":{"title":"Your appointment","text":"Tomorrow at nine, room 12."}}'
TIMEOUT_S = 30.0
WARM_UP = 500


class Plan:
    """What a client is to do."""

    def __init__(self, url: str, connections: int, ca_file: str) -> None:
        self.url, self.connections, self.ca_file = url, connections, ca_file
        self.tls = ssl.create_default_context(cafile=ca_file)


async def aiohttp(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    import aiohttp as library

    connector = library.TCPConnector(limit=plan.connections, ssl=plan.tls)
    timeout = library.ClientTimeout(total=TIMEOUT_S)
    async with library.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=library.DummyCookieJar(), auto_decompress=False
    ) as session:

        async def post() -> int:
            async with session.post(plan.url, headers=HEADERS, data=BODY, allow_redirects=False) as answer:
                await answer.read()
                return answer.status

        return await work(post)


async def aiosonic(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    import aiosonic as library

    patience = library.Timeouts(sock_connect=TIMEOUT_S, sock_read=TIMEOUT_S, pool_acquire=TIMEOUT_S)
    connector = library.TCPConnector(pool_configs={":default": {"size": plan.connections}}, timeouts=patience)
    client = library.HTTPClient(connector)

    async def post() -> int:
        answer = await client.post(plan.url, data=BODY, headers=dict(HEADERS), ssl=plan.tls)
        await answer.content()
        return int(answer.status_code)

    return await work(post)


async def httpx2(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    import httpx2 as library

    limits = library.Limits(max_connections=plan.connections, max_keepalive_connections=plan.connections)
    async with library.AsyncClient(verify=plan.tls, limits=limits, timeout=TIMEOUT_S, trust_env=False) as client:

        async def post() -> int:
            return (await client.post(plan.url, content=BODY, headers=HEADERS)).status_code

        return await work(post)


async def niquests(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    import niquests as library

    async with library.AsyncSession(pool_maxsize=plan.connections, pool_connections=plan.connections) as session:
        session.trust_env = False

        async def post() -> int:
            answer = await session.post(
                plan.url, data=BODY, headers=HEADERS, verify=plan.ca_file, allow_redirects=False
            )
            return int(answer.status_code)

        return await work(post)


async def pyreqwest(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    from pathlib import Path

    from pyreqwest.client import ClientBuilder

    pem = await asyncio.to_thread(Path(plan.ca_file).read_bytes)
    builder = ClientBuilder().add_root_certificate_pem(pem).max_connections(plan.connections).http1_only().no_proxy()
    async with builder.build() as client:

        async def post() -> int:
            answer = await client.post(plan.url).headers(HEADERS).body_bytes(BODY).build().send()
            await answer.bytes()
            return int(answer.status)

        return await work(post)


async def rnet(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    import rnet as library

    client = library.Client(
        verify=False, http1_only=True, no_proxy=True, pool_max_idle_per_host=plan.connections, allow_redirects=False
    )

    async def post() -> int:
        answer = await client.post(plan.url, headers=HEADERS, body=BODY)
        await answer.bytes()
        return int(answer.status)

    return await work(post)


async def pycurl(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    """The multi interface on the loop's own events, with a kept handle for each connection."""
    import pycurl as library

    loop = asyncio.get_running_loop()
    multi = library.CurlMulti()
    multi.setopt(library.M_MAX_TOTAL_CONNECTIONS, plan.connections)
    pending: dict[Any, asyncio.Future[int]] = {}
    timer: list[asyncio.TimerHandle | None] = [None]

    def act(descriptor: int, event: int) -> None:
        multi.socket_action(descriptor, event)
        _, done, failed = multi.info_read()
        for handle in done:
            pending.pop(handle).set_result(handle.getinfo(library.RESPONSE_CODE))
        for handle, _, text in failed:
            pending.pop(handle).set_exception(RuntimeError(text))

    def watch(what: int, descriptor: int, *_: object) -> None:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        if what & library.POLL_IN and what != library.POLL_REMOVE:
            loop.add_reader(descriptor, act, descriptor, library.CSELECT_IN)
        if what & library.POLL_OUT and what != library.POLL_REMOVE:
            loop.add_writer(descriptor, act, descriptor, library.CSELECT_OUT)

    def set_timer(timeout_ms: int) -> None:
        if timer[0] is not None:
            timer[0].cancel()
        timer[0] = None if timeout_ms < 0 else loop.call_later(timeout_ms / 1_000, act, library.SOCKET_TIMEOUT, 0)

    multi.setopt(library.M_SOCKETFUNCTION, watch)
    multi.setopt(library.M_TIMERFUNCTION, set_timer)
    free: list[Any] = []

    async def post() -> int:
        handle = free.pop() if free else library.Curl()
        answer = io.BytesIO()
        handle.setopt(library.URL, plan.url)
        handle.setopt(library.CAINFO, plan.ca_file)
        handle.setopt(library.HTTPHEADER, [f"{name}: {value}" for name, value in HEADERS.items()])
        handle.setopt(library.POSTFIELDS, BODY)
        handle.setopt(library.WRITEDATA, answer)
        pending[handle] = loop.create_future()
        multi.add_handle(handle)
        status = await pending[handle]
        multi.remove_handle(handle)
        free.append(handle)
        return status

    return await work(post)


async def tidings(plan: Plan, work: Callable[[Post], Awaitable[Took]]) -> Took:
    from tidings.clock import SystemClock
    from tidings.providers.http.client import HttpClient

    client = HttpClient(SystemClock(), timeout_s=TIMEOUT_S, connections_max=plan.connections, tls=plan.tls)

    async def post() -> int:
        return (await client.post(plan.url, HEADERS, BODY)).status

    took = await work(post)
    await client.close()
    return took


CLIENTS = {each.__name__: each for each in (aiohttp, aiosonic, httpx2, niquests, pycurl, pyreqwest, rnet, tidings)}


async def measure(name: str, plan: Plan, count: int) -> Took:
    """So many POSTs, as many at a time as there are connections."""

    async def work(post: Post) -> Took:
        await _all(post, min(WARM_UP, count), plan.connections)
        settle()
        before, cpu_before = time.perf_counter(), time.process_time()
        await _all(post, count, plan.connections)
        seconds, cpu_s = time.perf_counter() - before, time.process_time() - cpu_before
        return Took(count / seconds, cpu_s / count * 1_000_000)

    return await CLIENTS[name](plan, work)


async def _all(post: Post, count: int, together: int) -> None:
    numbers = iter(range(count))

    async def calls() -> None:
        for _ in numbers:
            status = await post()
            assert status == 200, status

    await asyncio.gather(*(calls() for _ in range(together)))


def main(name: str, url: str, count: int, connections: int, ca_file: str) -> None:
    """Print what was measured, or null if the client is not installed."""
    if importlib.util.find_spec(name) is None:
        say(None)
        return
    say(run(measure(name, Plan(url, connections, ca_file), count)))
    sys.stdout.flush()
    os._exit(0)  # some clients leave threads behind that take their time


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
