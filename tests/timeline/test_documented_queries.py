"""The queries of docs/reference/tables.md run on a SQLite file and on PostgreSQL, and find what is there."""

from pathlib import Path

import apsw
import psycopg
import pytest

from tests.contract.factories import NOW, SECOND
from tests.docs.pages import DOCS, blocks
from tests.servers.fixtures import postgres
from tests.servers.postgres import Postgres
from tidings.clock import SystemClock
from tidings.delivery import rows
from tidings.domain.notifications.delivery import Claim, Delivery
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import User
from tidings.ports import Store
from tidings.ports.tables import Put
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.store import SqliteStore

__all__ = ["postgres"]

pytestmark = [pytest.mark.slow]

TENANT = "default"
QUERIES = [(block.text, block.note) for block in blocks(DOCS / "reference" / "tables.md") if block.language == "sql"]


async def fill(store: Store) -> None:
    """Rows of each kind that the queries ask for: n1 failed, n2 is being sent, n3 was sent, n4 is pending."""
    failed = Delivery("n1/1", "n1", NOW, "failed", "timeout", "email", "ada", "ada@example.com", changed=NOW)
    claimed = Delivery("n2/1", "n2", NOW, "processing", channel="email", user="ada", claim=Claim("w", NOW + SECOND))
    sent = Delivery("n3/1", "n3", NOW, "delivered", channel="sms", user="ada", sent=NOW, changed=NOW)
    suppression = rows.suppression_keys(TENANT, "email", "x@example.com")[0]
    columns = ("email", suppression.name, "x@example.com", None, None, "bounced", NOW)
    groups = [
        [rows.user_put(TENANT, User("ada", email="ada@example.com"), 0)],
        [rows.notification_put(Notification("n1", TENANT, ("email",), user="ada", template="hi", created=NOW), 0)],
        [rows.notification_put(Notification("n2", TENANT, ("email",), user="ada", template="hi", created=NOW), 0)],
        [rows.notification_put(Notification("n3", TENANT, ("sms",), user="ada", template="hi", created=NOW), 0)],
        [rows.notification_put(Notification("n4", TENANT, ("email",), user="ada", template="hi", created=NOW), 0)],
        [rows.delivery_put(TENANT, failed, 0)],
        [rows.delivery_put(TENANT, sent, 0)],
        [rows.delivery_put(TENANT, claimed, 0)],
        [Put(suppression, b"{}", 0, columns)],
    ]
    assert all(await rows.change(store.tables, groups, NOW))


def chosen(store: str) -> list[str]:
    """The queries for both stores, and those for this one."""
    return [text for text, note in QUERIES if note in {"", store}]


async def test_queries_on_sqlite(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tidings.db")
    assert await store.acquire(0, SECOND)
    await fill(store)
    connection = apsw.Connection(str(tmp_path / "tidings.db"), flags=apsw.SQLITE_OPEN_READONLY)
    found = [connection.execute(query).fetchall() for query in chosen("sqlite")]
    connection.close()
    await store.close()
    check(found)


async def test_queries_on_postgres(postgres: Postgres) -> None:
    schema = "documented_queries"
    store = await PostgresStore.open(postgres.dsn, SystemClock(), schema=schema, lanes=1)
    await fill(store)
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await connection.execute(f"SET search_path TO {schema}; SET default_transaction_read_only = on".encode())
        found = [await (await connection.execute(query.encode())).fetchall() for query in chosen("postgres")]
    await store.close()
    check(found)


def check(found: list[list[tuple[object, ...]]]) -> None:
    states, failures, of_user, claimed, suppressions, templates, addresses, bodies = found
    assert states == [
        (TENANT, "email", "failed", 1),
        (TENANT, "email", "processing", 1),
        (TENANT, "sms", "delivered", 1),
    ]
    assert [row[:2] for row in failures] == [("n1/1", "n1")]
    assert [(row[0], row[5]) for row in of_user] == [("n3", "delivered")]
    assert claimed == [(TENANT, "n2/1", "w", NOW + SECOND)]
    assert suppressions == [("email", "bounced", 1)]
    assert templates == [("hi", None, 1)]
    assert addresses == [("ada", "email", "ada@example.com")]
    assert sorted((row[0], row[2]) for row in bodies) == [
        ("n1/1", "ada@example.com"),
        ("n2/1", None),
        ("n3/1", None),
    ]
