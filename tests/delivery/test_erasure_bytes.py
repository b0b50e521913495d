"""Nothing that a user was, or was told, is left in the store's files or rows, nor in the files of a provider."""

import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tests.contract.stores import Served
from tests.delivery.world import QUICK, SECOND, TENANT, Recorder, World, changed, started_world
from tidings.clock import SystemClock
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.services import NotificationServices
from tidings.delivery.worker.pipeline import RetryPolicy
from tidings.domain.notifications.delivery import DeliveryReceipt, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import Rendered
from tidings.domain.notifications.retry_backoff import Backoff
from tidings.ports import Provider
from tidings.providers.files import FileProvider, Settings
from tidings.providers.in_app import InAppProvider
from tidings.providers.in_app import Settings as InAppSettings
from tidings.testing import eventually
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow

EACH = 30  # notifications of a kind, so that pages are split and freed
TOKEN = "0f9e" * 16
SLOW_RETRY = changed(QUICK, policy=RetryPolicy(Backoff(first_us=3_600 * SECOND), claim_us=20_000_000))


def profile(name: str, number: int) -> dict[str, Any]:
    return {
        "name": f"{name} Lovelace",
        "email": f"{name}.lovelace@example.com",
        "phone": f"+1555010{number}",
        "webhook": f"https://hooks.example/{name}-secret",
        "devices": [{"platform": "apns", "token": f"{number}{TOKEN[1:]}"}],
        "variables": {"city": f"{name}-town"},
    }


def traces(name: str, number: int) -> list[bytes]:
    """What would identify the user, in lower case."""
    given = (f"{name}.lovelace", f"{name} lovelace", f"1555010{number}", f"{name}-secret", f"{number}{TOKEN[1:]}")
    return [each.lower().encode() for each in (*given, f"{name}-town", f"told {name}")]


class Bytes:
    """All bytes that a store and a folder have."""

    def __init__(self, folder: Path, schema: str | None) -> None:
        self._folder = folder
        self._schema = schema

    def found(self, wanted: list[bytes]) -> list[str]:
        """Which of them are found, and where."""
        texts = [(path.name, path.read_bytes().lower()) for path in self._folder.rglob("*") if path.is_file()]
        texts += [] if self._schema is None else _rows(self._schema)
        return [f"{each.decode()} in {name}" for name, text in texts for each in wanted if each in text]


def _rows(schema: str) -> list[tuple[str, bytes]]:
    """The rows of all tables as text, with bytes decoded."""
    with psycopg.connect(Served.dsn()) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        found = []
        for (name,) in names:
            rows = connection.execute(f'SELECT t::text FROM "{schema}"."{name}" t'.encode()).fetchall()
            whole = "\n".join(text for (text,) in rows)
            binary = b"\n".join(bytes.fromhex(digits) for digits in re.findall(r"\\x((?:[0-9a-f]{2})+)", whole))
            found.append((name, whole.lower().encode() + binary.lower()))
        return found


@pytest.fixture(params=["sqlite", "postgres"])
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[World, Bytes]]:
    """A node on a file or on a database, and what can be read of it from outside."""
    if request.param == "sqlite":
        async with started_world(await SqliteStore.open(tmp_path / "t.db")) as world:
            yield world, Bytes(tmp_path, None)
    else:
        schema = f"erasure_{random.randrange(1 << 30)}"
        store = await PostgresStore.open(Served.dsn(), SystemClock(), lanes=2, schema=schema)
        async with started_world(store) as world:
            yield world, Bytes(tmp_path, schema)


def failing(message: Rendered) -> Verdict | None:
    """A provider that repeats the address: some messages are refused for good, some wait for another attempt."""
    number = int(message.id.partition("/")[0].rpartition("-")[2])
    if number % 3 == 0:
        return Permanent("address_refused", f"550 <{message.to}> is unknown here")
    return Temporary("provider_error", f"451 {message.to}: later") if number % 3 == 1 else None


async def send_everything(world: World, services: NotificationServices, name: str, user: str) -> None:
    """Notifications of every kind: sent, failed, waiting, in an inbox, to a bare address, and with receipts."""
    kinds: dict[str, dict[str, Any]] = {
        "mail": {"user": user, "channel": "email", "dedupe_key": name},
        "text": {"user": user, "channel": "sms"},
        "push": {"user": user, "channel": "push"},
        "hook": {"user": user, "channel": "webhook"},
        "inbox": {"user": user, "channel": "in_app"},
        "bare": {"to": f"{name}.Lovelace@example.com", "channel": "email"},
        "later": {"user": user, "channel": "email", "at": "+1h"},
        "again": {"user": user, "channels": ("email", "sms"), "cron": "0 9 * * *"},
    }
    asked = [
        {"id": f"{user}-{kind}-{number}", "words": {"text": f"Told {name} of {number}."}, **about}
        for kind, about in kinds.items()
        for number in range(EACH)
    ]
    for document in asked:
        given = {key: f"{value}{document['id']}" if key == "dedupe_key" else value for key, value in document.items()}
        await services.acceptance.accept(TENANT, msgspec.convert(given, NotificationRequest))
    now = [f"{each['id']}/1" for each in asked if "at" not in each and "cron" not in each]

    async def all_tried() -> bool:
        found = [await world.delivery(each) for each in now]
        return all(each is not None and (each.is_settled or each.next_try is not None) for each in found)

    await eventually(all_tried, 120, poll_s=0.2)
    for number in range(2, EACH, 3):
        message = f"{user}-text-{number}/1"
        receipt = DeliveryReceipt(
            "bounced", f"p-{message}", f"e-{message}", address=f"+1555010{user[1:]}", suppress=True
        )
        assert (await services.receipts.apply("text", receipt, TENANT)).state == "bounced"


async def test_no_byte_of_an_erased_user_is_left(node: tuple[World, Bytes], tmp_path: Path) -> None:
    world, everything = node
    services = NotificationServices(world.store.tables, world.engine, world.clock)
    text, push, mail = Recorder("sms"), Recorder("push"), Recorder("email")
    text.answer = push.answer = mail.answer = failing
    inbox = InAppProvider(InAppSettings())
    files = FileProvider(Settings(terminal=False), world.clock, tmp_path, (text, push, mail, inbox))
    providers: dict[str, Provider] = {"mail": mail, "text": text, "push": push, "in_app": inbox, "files": files}
    services.erasure.erasable = {"files": files}
    world.start(world.worker(providers, SLOW_RETRY))
    people = {"u1": ("Ada", 1), "u2": ("Eve", 2)}
    for user, (name, number) in people.items():
        await services.users.put(TENANT, user, profile(name, number))
        await services.suppressions.add(
            TENANT, "email", f"{name}.lovelace@example.com", f"of {name} Lovelace", category="news"
        )
        await send_everything(world, services, name, user)
        present = everything.found(traces(name, number))
        assert {line.split(" in ")[0] for line in present} == {each.decode() for each in traces(name, number)}
    erased = await services.erasure.erase(TENANT, "u1")
    assert erased.removed["notification"] == 8 * EACH
    assert erased.removed["files"] == EACH
    assert await world.dead()
    assert everything.found(traces("Ada", 1)) == []
    assert everything.found(traces("Eve", 2)) != [], "others stay"
