"""Nodes that deliver: without any configuration, with a wrong password, several on one database."""

import asyncio
import contextlib
import itertools
import random
import re
import signal
from collections.abc import AsyncIterator
from email import message_from_bytes, policy
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.delivery.faulty_providers import SECRETS, Providers, started_providers
from tests.delivery.loop import QUICK
from tests.faults.node_process import NodeProcess, start_plain
from tests.providers.servers.http import Answer, Fault, Request
from tests.servers.postgres import Postgres
from tidings.testing import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiosmtpd"),
]

READY_S = 30.0
STOP_S = 10.0
WRONG = "quite another password"
_numbers = itertools.count(1)


class Client:
    """A node and a client for it."""

    def __init__(self, node: NodeProcess, session: aiohttp.ClientSession) -> None:
        self.node = node
        self._session = session

    async def get(self, path: str) -> Any:
        async with self._session.get(path) as response:
            return await response.json()

    async def send(self, method: str, path: str, document: Any) -> Any:
        async with self._session.request(method, path, json=document) as response:
            answer = await response.json()
            assert response.status < 300, answer
            return answer

    async def notify(self, number: int, channel: str, **more: Any) -> None:
        document = {
            "id": f"n-{number}",
            "user": "ada",
            "channel": channel,
            "content": {"text": f"news {number}"},
            **more,
        }
        await self.send("POST", "/v1/notifications", document)

    async def states(self) -> list[tuple[str, str]]:
        """The state of each delivery, and why."""
        found = await self.get("/v1/deliveries?limit=1000")
        return [(each["state"], each.get("reason", "")) for each in found["deliveries"]]

    async def calls(self, provider: str) -> int:
        """How often this process has called a provider."""
        async with self._session.get("/metrics") as response:
            text = await response.text()
        pattern = rf'^tidings_provider_calls_total{{[^}}]*provider="{provider}"[^}}]*}} (\d+)$'
        counts = re.findall(pattern, text, re.MULTILINE)
        return sum(map(int, counts))

    async def figure(self, name: str) -> list[str]:
        async with self._session.get("/metrics") as response:
            return [line for line in (await response.text()).splitlines() if line.startswith(name)]

    async def is_ready(self) -> bool:
        async with self._session.get("/readyz") as response:
            return response.status == 200

    async def stop(self) -> None:
        self.node.send(signal.SIGTERM)
        assert await self.node.ended(STOP_S)
        assert self.node.status == 0, self.node.log


@contextlib.asynccontextmanager
async def started(folder: Path, *argv: str, **environment: str) -> AsyncIterator[Client]:
    """A node that is ready, until the end of the block."""
    node = await start_plain(folder, *argv, **environment)
    try:
        async with aiohttp.ClientSession(await node.url()) as session:
            client = Client(node, session)
            await eventually(client.is_ready, READY_S)
            yield client
    finally:
        node.send(signal.SIGKILL)
        await node.ended(STOP_S)


async def put_ada(client: Client, webhook: str = "https://hooks.example/in") -> None:
    await client.send("PUT", "/v1/users/ada", {"email": "ada@example.com", "name": "Ada", "webhook": webhook})


async def test_with_nothing_configured_a_notification_is_a_file_beside_the_database(tmp_path: Path) -> None:
    async with started(tmp_path, "--store", str(tmp_path / "data.db")) as client:
        await client.node.logged(rf"no provider is configured: messages are written to {tmp_path}/outbox")
        await put_ada(client)
        await client.notify(1, "email", content={"title": "Tea", "text": "Tea at nine."})
        await client.notify(2, "in_app", content={"title": "Tea", "text": "Tea at nine."})
        await eventually(partial(all_are, client, 2, "sent"))
        [file] = (tmp_path / "outbox").iterdir()
        mail = message_from_bytes(file.read_bytes(), policy=policy.default)
        assert (file.suffix, mail["To"], mail["Subject"]) == (".eml", "Ada <ada@example.com>", "Tea")
        inbox = await client.get("/v1/inbox/ada")
        assert [line["title"] for line in inbox["lines"]] == ["Tea"]
        await client.stop()


async def test_a_wrong_password_is_reported_everywhere_and_loses_nothing(tmp_path: Path) -> None:
    async with started_providers(tmp_path, random.Random(1)) as providers:
        (tmp_path / "tidings.toml").write_text(providers.settings(**QUICK), "utf-8")
        async with started(tmp_path, **{**SECRETS, "MAIL_PASSWORD": WRONG}) as client:
            await put_ada(client, providers.webhook)
            await client.notify(1, "email")
            await client.node.logged("smtp rejects our requests")

            async def notices() -> str:
                return "".join((await client.get("/readyz")).get("notices", []))

            assert "smtp rejects our requests (credentials_refused" in await eventually(notices)
            assert await client.is_ready(), "changes are taken all the same"
            [figure] = await client.figure("tidings_provider_stopped{")
            assert figure == 'tidings_provider_stopped{provider="smtp",fault="ours"} 1'
            shown = [await client.get(path) for path in ("/v1/deliveries", "/v1/channels", "/v1/notifications/n-1")]
            await client.stop()
            assert not any(secret in client.node.log + repr(shown) for secret in (WRONG, *SECRETS.values()))
        async with started(tmp_path, **SECRETS) as client:
            await eventually(partial(all_are, client, 1, "sent"), 20)
            await client.stop()
        assert providers.mails() == {"news 1": 1}


@contextlib.asynccontextmanager
async def fleet(
    postgres: Postgres, folder: Path, providers: Providers, *, deliver: int, more: str = "", **delivery: Any
) -> AsyncIterator[tuple[Client, list[Client], list[str]]]:
    """A node with the API that releases, this many that only deliver, and a function that starts one more."""
    text = providers.settings(**{**QUICK, **delivery}).replace("[channels.smtp]", f"{more}\n[channels.smtp]")
    (folder / "tidings.toml").write_text(text, "utf-8")
    flags = ["--store", postgres.dsn, "--set", f"store.schema=people_{next(_numbers)}", "--set", "store.lanes=4"]
    async with contextlib.AsyncExitStack() as stack:
        front = await stack.enter_async_context(started(folder, *flags, "--roles", "api,dispatch", **SECRETS))
        behind = [*flags, "--roles", "deliver"]
        workers = [await stack.enter_async_context(started(folder, *behind, **SECRETS)) for _ in range(deliver)]
        yield front, workers, behind


async def test_two_processes_share_one_rate_limit(postgres: Postgres, tmp_path: Path) -> None:
    per_s, burst, count = 20, 5, 100
    arrived: list[float] = []
    async with started_providers(tmp_path, random.Random(1)) as providers:
        loop = asyncio.get_running_loop()

        def timed(request: Request) -> Answer | Fault:
            arrived.append(loop.time())
            return providers.receiver(request)

        providers.hooks._handler = timed
        limit = f'rate = "{per_s}/s burst {burst}"'
        async with fleet(postgres, tmp_path, providers, deliver=2, more=limit) as (front, workers, _):
            await put_ada(front, providers.webhook)
            for number in range(count):
                await front.notify(number, "webhook")
            await eventually(partial(all_are, front, count, "sent"), 40)
            calls = [await worker.calls("webhook") for worker in workers]
    assert sum(calls) == count == len(arrived)
    assert min(calls) > 0, f"both were at it: {calls}"
    for begin, moment in enumerate(arrived):
        within = sum(moment <= other < moment + 1 for other in arrived[begin:])
        assert within <= per_s * 1.25 + burst, f"{within} within a second, from the {begin}th on"
    assert arrived[-1] - arrived[0] >= (count - burst) / per_s * 0.9


async def test_a_circuit_breaker_opens_for_all_processes(postgres: Postgres, tmp_path: Path) -> None:
    slow: dict[str, Any] = {"breaker_failures": 5, "breaker_first": "60s", "breaker_longest": "60s"}
    async with started_providers(tmp_path, random.Random(1)) as providers:
        providers.post.at["connect"].then(*["421 4.3.2 out of order"] * 1_000)
        async with fleet(postgres, tmp_path, providers, deliver=1, **slow) as (front, [first], behind):
            await put_ada(front, providers.webhook)
            for number in range(20):
                await front.notify(number, "email")

            async def is_open() -> bool:
                ways = (await front.get("/v1/channels"))["providers"]
                return any(way["name"] == "smtp" and way["breaker"] == "open" for way in ways)

            await eventually(is_open, 20)
            await eventually(partial(all_are, front, 20, "pending"), 20)
            assert await first.calls("smtp") >= 5
            await first.stop()
            connections = providers.post.connections
            async with started(tmp_path, *behind, **SECRETS) as second:
                for number in range(20, 40):
                    await front.notify(number, "email")
                await eventually(partial(all_are, front, 40, "pending"), 20)
                assert await second.calls("smtp") == 0
                await second.stop()
            assert providers.post.connections == connections, "no worker called it"
            reasons = {reason for _, reason in await front.states()}
            assert reasons <= {"breaker_open", "provider_error"}, reasons
            waiting = await front.get("/v1/schedules?state=pending&topic=notify.email&limit=100")
            assert len(waiting["schedules"]) == 40, "they lie on the timeline"


async def test_nodes_deliver_only_to_their_channels(postgres: Postgres, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        providers = await stack.enter_async_context(started_providers(tmp_path, random.Random(1)))
        front, _, behind = await stack.enter_async_context(fleet(postgres, tmp_path, providers, deliver=0))
        await put_ada(front, providers.webhook)
        mailer, caller = [
            await stack.enter_async_context(started(tmp_path, *behind, "--channels", channels, **SECRETS))
            for channels in ("email,sms", "webhook,in_app,push")
        ]
        for number in range(0, 40, 2):
            await front.notify(number, "email")
            await front.notify(number + 1, "webhook")
        await eventually(partial(all_are, front, 40, "sent"), 40)
        assert [await mailer.calls(name) for name in ("smtp", "webhook")] == [20, 0]
        assert [await caller.calls(name) for name in ("smtp", "webhook")] == [0, 20]
        shown = await mailer.figure("tidings_deliveries_waiting{")
        assert {re.sub(r'.*channel="(\w+)".*', r"\1", line) for line in shown} == {"email", "sms"}
        nodes = (await front.get("/v1/nodes"))["nodes"]
        assert [node["channels"] for node in nodes if "deliver" in node["roles"]] == [
            ["email", "sms"],
            ["webhook", "in_app", "push"],
        ]
        await caller.stop()
        await front.notify(40, "webhook")

        async def notices() -> str:
            return "".join((await front.get("/readyz")).get("notices", []))

        assert "no live node delivers to push, webhook, in_app" in await eventually(notices)
        await stack.enter_async_context(started(tmp_path, *behind, **SECRETS))
        await eventually(partial(all_are, front, 41, "sent"), 40)


async def all_are(client: Client, count: int, state: str) -> bool:
    found = [each for each, _ in await client.states()]
    return len(found) == count and set(found) == {state}
