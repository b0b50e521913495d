"""Documents of version 0.1 become rows: all of them, once, also after a crash and with several nodes at once."""

import asyncio

import msgspec
import pytest

from tests.contract.factories import ACME, DAY, NOW
from tests.timeline.old_documents import OldDocument, write_schema
from tests.timeline.postgres.conftest import OpenStore
from tidings.domain.errors import StoreError
from tidings.domain.notifications import tables as declared
from tidings.domain.notifications.address_key import _digest, digest
from tidings.domain.notifications.circuit_breaker import Breaker
from tidings.domain.notifications.delivery import Claim, Delivery
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.rate_limit import Bucket
from tidings.domain.notifications.tables import SHARED, TABLES, Index
from tidings.domain.notifications.user import InboxEntry, User
from tidings.ports.tables import ChangeGroup, Put, Remove, Row, RowKey
from tidings.testing import SimulatedClock
from tidings.timeline.migrations import Layouts
from tidings.timeline.postgres.database import inside
from tidings.timeline.postgres.migration import LAYOUTS, DocumentMigration
from tidings.timeline.postgres.store import PostgresStore

ANN = User("ann", "Ann", email="Ann@Example.com", phone="+41 79 123", zone="Europe/Zurich", variables={"x": "\0"})
TOLD = Notification("n1", ACME, ("email", "sms"), user="ann", template="hello", batch="b1", created=NOW - 7)
DIRECT = Notification("n2", ACME, ("email",), to="bob@example.com", template="hello", version=2, created=NOW - 6)
SENT = Delivery("n1/1", "n1", NOW, "sent", channel="email", user="ann", provider="smtp", provider_id="p1", sent=NOW)
TRIED = Delivery("n2/1", "n2", NOW, "processing", channel="email", address="bob@example.com", claim=Claim("w", NOW + 9))
IDN = "me@b\u00fccher.example"
LINE = InboxEntry("m1", "ann", "Ti\0tle", "Body", NOW - 3)


def migration(store: PostgresStore) -> DocumentMigration:
    return DocumentMigration(store._pools.work, store.tables, store._context.options.schema)


def document(
    kind: str,
    name: str,
    value: object,
    *tags: str,
    tenant: str = ACME,
    order: int = 0,
    until: int | None = None,
) -> OldDocument:
    """A document as version 0.1 wrote it."""
    return OldDocument(tenant, kind, name, msgspec.json.encode(value), tags, order, until)


def user(value: User) -> OldDocument:
    return document("user", value.id, value, "all")


def suppressed(name: str, address: str | None, reason: str) -> OldDocument:
    value = {"channel": "email", "address": address, "reason": reason, "since": NOW}
    return document("suppressed", name, value, "all", "channel:email", order=NOW)


def old_name(written: str) -> str:
    """The name that version 0.1 gave to the suppression of an address: as it was written."""
    return f"email/{_digest('email', written)}"


def everything() -> list[OldDocument]:
    """A document of each kind."""
    return [
        user(ANN),
        document("notification", "n1", TOLD, "all", "user:ann", order=TOLD.created),
        document("notification", "n2", DIRECT, "all", order=DIRECT.created, until=NOW + DAY),
        document("delivery", "n1/1", SENT, "all", order=NOW, until=NOW + DAY),
        document("delivery", "n2/1", TRIED, "all", order=NOW),
        document("sent", "smtp/p1", {"tenant": ACME, "delivery": "n1/1"}, f"user:{ACME}/ann", order=NOW, tenant=SHARED),
        document("dedupe", "d1", {"notification": "n1"}, "user:ann", order=NOW, until=NOW + DAY),
        document("template", "hello", {"version": 2, "changed": NOW}, "all"),
        document("template_version", "hello/2", {"name": "hello"}),
        document("inbox", "ann/m1", LINE, "user:ann", "unread:ann", order=LINE.at, until=NOW + DAY),
        document("throttle", "smtp", Bucket(5, NOW), tenant=SHARED, until=NOW + DAY),
        document("breaker", "smtp", Breaker(NOW + 5, 2, "timeout", worker="w"), "all", tenant=SHARED, until=NOW + DAY),
        suppressed(old_name(IDN), IDN, "bounced"),
        suppressed(old_name("gone@example.com"), None, "erased"),
        document("suppression_keys", "2", {}),
    ]


async def rows_of(store: PostgresStore, table: str, tenant: str = ACME) -> list[Row]:
    return await store.tables.find(Index(table, f"{table}_all"), tenant, (), NOW, limit=100_000)


async def test_a_document_of_each_kind_becomes_a_row(open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    documents = everything()
    over = document("notification", "over", TOLD, until=NOW - 1)
    await write_schema(store, [*documents, over])
    assert await migration(store).run(NOW, slice_rows=4) == len(documents) + 1
    bodies = {(each.name, each.body) for each in documents}
    for table in TABLES:
        tenant = SHARED if table in {"provider_message", "rate_limit", "circuit_breaker"} else ACME
        found = await rows_of(store, table, tenant)
        assert found, table
        for row in found:
            assert table == "suppression" or (row.key.name, row.body) in bodies, row
    find = store.tables.find
    assert [row.key.name for row in await find(declared.NOTIFICATIONS, ACME, (), NOW)] == ["n1", "n2"]
    searches: list[tuple[Index, str, str, str]] = [
        (declared.USERS_BY_EMAIL, ACME, f"email/{digest('email', 'ann@example.COM')}", "ann"),
        (declared.USERS_BY_PHONE, ACME, f"sms/{digest('sms', '+4179123')}", "ann"),
        (declared.NOTIFICATIONS_BY_USER, ACME, "ann", "n1"),
        (declared.NOTIFICATIONS_BY_ADDRESS, ACME, f"email/{digest('email', 'bob@example.com')}", "n2"),
        (declared.NOTIFICATIONS_BY_GROUP, ACME, "b1", "n1"),
        (declared.DELIVERIES_BY_NOTIFICATION, ACME, "n1", "n1/1"),
        (declared.DELIVERIES_BY_USER, ACME, "ann", "n1/1"),
        (declared.DELIVERIES_BY_ADDRESS, ACME, f"email/{digest('email', 'bob@example.com')}", "n2/1"),
        (declared.DEDUPE_KEYS_BY_USER, ACME, "ann", "d1"),
        (declared.INBOX_UNREAD, ACME, "ann", "ann/m1"),
        (declared.PROVIDER_MESSAGES_BY_USER, SHARED, f"{ACME}/ann", "smtp/p1"),
    ]
    for index, tenant, value, name in searches:
        assert [row.key.name for row in await find(index, tenant, (value,), NOW)] == [name], index.name


async def test_suppressions_get_the_keys_that_their_addresses_have_today(open_store: OpenStore) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    today, erased = f"email/{digest('email', IDN)}", old_name("x@example.com")
    assert old_name(IDN) != today
    documents = [
        suppressed(old_name(IDN), IDN, "old"),
        suppressed(today, "me@xn--bcher-kva.example", "new"),
        suppressed(erased, None, "erased"),
    ]
    await write_schema(store, documents)
    await migration(store).run(NOW, slice_rows=1)
    found = {row.key.name: msgspec.json.decode(row.body) for row in await rows_of(store, "suppression")}
    assert {name: each["reason"] for name, each in found.items()} == {today: "new", erased: "erased"}
    by_address = await store.tables.find(declared.SUPPRESSIONS_BY_ADDRESS, ACME, (today,), NOW)
    assert len(by_address) == 1


async def test_several_nodes_copy_each_document_once(open_store: OpenStore) -> None:
    stores = [await open_store(SimulatedClock(), lanes=1) for _ in range(3)]
    users = [user(User(f"u{number}", email=f"u{number}@example.com")) for number in range(500)]
    await write_schema(stores[0], users)
    copied = await asyncio.gather(*(migration(store).run(NOW, slice_rows=20) for store in stores))
    assert sum(copied) == 500
    assert len(await rows_of(stores[1], "app_user")) == 500
    assert await migration(stores[0]).run(NOW) == 0


async def test_it_continues_after_a_crash_and_brings_nothing_back(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    users = [user(User(f"u{number}")) for number in range(100)]
    await write_schema(store, users)
    left = iter(range(3))

    def crash(name: str) -> None:
        if name == "migrate.written" and next(left, None) is None:
            raise StoreError("crash")

    with monkeypatch.context() as patch:
        patch.setattr("tidings.crash.point", crash)
        with pytest.raises(StoreError, match="crash"):
            await migration(store).run(NOW, slice_rows=10)
    assert len(await rows_of(store, "app_user")) == 30
    assert await migration(store).run(NOW, slice_rows=10) == 70
    assert len(await rows_of(store, "app_user")) == 100
    [gone] = await store.tables.commit([ChangeGroup((Remove(RowKey("app_user", ACME, "u7")),))], NOW)
    assert gone.version
    assert await migration(store).run(NOW) == 0
    assert len(await rows_of(store, "app_user")) == 99


async def test_rows_keep_the_versions_of_documents_and_later_ones_are_greater(open_store: OpenStore) -> None:
    """Callers have them as ETags."""
    store = await open_store(SimulatedClock(), lanes=1)
    await write_schema(store, [user(User(f"u{number}")) for number in range(50)])
    await migration(store).run(NOW, slice_rows=10)
    found = {row.key.name: row.version for row in await rows_of(store, "app_user")}
    assert found == {f"u{number}": number + 1 for number in range(50)}
    [new] = await store.tables.commit([ChangeGroup((Remove(RowKey("app_user", ACME, "u7")), put_user("new")))], NOW)
    assert new.version == 51


def put_user(name: str) -> Put:
    columns = (None, None, None, None, "UTC", None, None, None)
    return Put(RowKey("app_user", ACME, name), msgspec.json.encode(User(name)), 0, columns)


async def test_documents_are_closed_while_they_are_copied_and_dropped_then(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(SimulatedClock(), lanes=1)
    schema = store._context.options.schema
    await write_schema(store, [user(ANN)])

    def crash(name: str) -> None:
        if name == "migrate.copied":
            raise StoreError("crash")

    with monkeypatch.context() as patch:
        patch.setattr("tidings.crash.point", crash)
        with pytest.raises(StoreError, match="crash"):
            await migration(store).run(NOW)
    with pytest.raises(StoreError, match="a newer Tidings uses this store"):
        await store._pools.work.call(inside(schema, "DELETE FROM tidings.document"))
    assert await migration(store).run(NOW) == 0
    tables = await store._pools.work.read("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))
    assert not {"document", "tagged", "document_migration"} & {name for (name,) in tables}
    assert len(await rows_of(store, "app_user")) == 1


async def test_a_locked_table_of_documents_is_dropped_later(open_store: OpenStore) -> None:
    """A session that reads documents for a moment delays the migration, and does not stop it."""
    store = await open_store(SimulatedClock(), lanes=1)
    await write_schema(store, [user(ANN)])
    lock = inside(store._context.options.schema, "LOCK TABLE tidings.document IN ROW EXCLUSIVE MODE").encode()
    async with store._pools.work.transaction() as connection:
        await connection.execute(lock)
        running = asyncio.create_task(migration(store).run(NOW))
        done, _ = await asyncio.wait([running], timeout=0.3)
        assert not done
    assert await running == 1


async def test_a_start_that_moves_documents_is_logged(
    open_store: OpenStore, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidings.store")
    store = await open_store(SimulatedClock())
    await write_schema(store, [user(ANN)])
    assert caplog.records == []
    for _ in range(2):
        await open_store(SimulatedClock())
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"completed the migration of the schema {schema} to layout {Layouts(LAYOUTS).known} in "
    )
