"""The bare clients: the libraries of the channels, their pools, and messages that are ready, with nothing around them.

`python -m bench.delivery.bare_client webhook|email PORT COUNT` says how many a second were taken, and the CPU for each.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import aiosmtplib

from bench.delivery.content import SENDER, TEMPLATE, Took, person, variables
from bench.engines import run, settle
from bench.processes import HOST, say
from tidings.clock import SystemClock
from tidings.config.settings import Delivery
from tidings.delivery.templates import compile_template
from tidings.delivery.templates.renderer import build_message
from tidings.domain.notifications.message import ChannelName, Email, Rendered, Webhook
from tidings.domain.secret import Secret, sign
from tidings.providers import webhook
from tidings.providers.email import smtp
from tidings.providers.email.mime import Sender, compose
from tidings.providers.http.client import AGENT

KEYS = (b"k" * 32,)
_DELIVERY = Delivery()
TOGETHER = (_DELIVERY.concurrency - _DELIVERY.concurrency_reserved) * 7 // 8  # what a worker lets one tenant have


def messages(channel: ChannelName, count: int, port: int) -> Iterator[Rendered]:
    """The messages as a node renders them, with ids of the same length."""
    clock, compiled = SystemClock(), compile_template(TEMPLATE)
    now = clock.now()
    for number in range(count):
        user = person(number, port, clock)
        content = compiled.render(channel, user.known(variables(now, "normal")), user.locale)
        [address] = user.addresses(channel)
        name = f"n_{now:016d}_{number:012x}:{user.id}/1"
        yield build_message(content, channel, address, name, tenant="default", to_name=user.name)


async def call_hooks(port: int, count: int) -> Took:
    """POSTs through one session, as many under way as a worker has."""
    settings = webhook.Settings(Secret(""))
    ready = []
    for message in messages("webhook", count, port):
        assert isinstance(message, Webhook)
        signed = sign(KEYS, message.id, SystemClock().now() // 1_000_000, message.body)
        ready.append((message.to, {"Content-Type": "application/json", **signed}, message.body))
    connector = aiohttp.TCPConnector(limit=settings.connections_max, limit_per_host=settings.connections_per_host_max)
    async with aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": AGENT, "Accept-Encoding": "identity"},
        auto_decompress=False,
    ) as session:
        waiting = iter(ready)

        async def call() -> None:
            for url, headers, body in waiting:
                async with session.post(url, headers=headers, data=body, allow_redirects=False) as answer:
                    await answer.read()
                    assert answer.status == 200, answer.status

        return await _timed(call, TOGETHER, count)


async def send_mails(port: int, count: int) -> Took:
    """E-mails over as many connections as the channel keeps, each for as many messages."""
    settings = smtp.Settings(HOST, SENDER)
    sender, now = Sender(SENDER), SystemClock().now()
    ready = []
    for message in messages("email", count, port):
        assert isinstance(message, Email)
        ready.append((message.to, compose(message, sender, now)))
    waiting = iter(ready)

    async def send() -> None:
        client = None
        for used, (to, content) in enumerate(waiting, start=1):
            if client is None:
                client = aiosmtplib.SMTP(hostname=HOST, port=port, use_tls=False, start_tls=False)
                await client.connect()
            await client.mail(SENDER, encoding="ascii")
            await client.rcpt(to, encoding="ascii")
            await client.data(content)
            if used % settings.messages_per_connection == 0:
                await client.quit()
                client = None
        if client is not None:
            await client.quit()

    return await _timed(send, settings.connections_max, count)


async def _timed(work: Callable[[], Awaitable[None]], together: int, count: int) -> Took:
    settle()
    before, cpu_before = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(together)))
    seconds, cpu_s = time.perf_counter() - before, time.process_time() - cpu_before
    return Took(count / seconds, cpu_s / count * 1_000_000)


def main(channel: str, port: int, count: int) -> None:
    """Print what was measured."""
    say(run(call_hooks(port, count) if channel == "webhook" else send_mails(port, count)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
