"""A store of version 0.1: its documents become rows of tables when it is opened, whatever is killed meanwhile."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tests.contract.factories import ACME, NOW, SECOND
from tests.contract.test_tables import names
from tests.timeline.later_layouts import later
from tests.timeline.old_documents import (
    OldDocument,
    encode,
    old_delivery,
    old_notification,
    old_provider_message,
    old_user,
    write_file,
)
from tidings import crash
from tidings.domain.notifications import tables as declared
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.address_key import digest
from tidings.domain.notifications.circuit_breaker import Breaker
from tidings.domain.notifications.delivery import Attempt, Claim, Delivery
from tidings.domain.notifications.message import ChannelName
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.rate_limit import Bucket
from tidings.domain.notifications.tables import SHARED, TABLES
from tidings.domain.notifications.user import InboxEntry, User
from tidings.ports.tables import RowKey
from tidings.testing import SimulatedClock
from tidings.timeline.migrations import Layouts
from tidings.timeline.sqlite.database import LAYOUTS
from tidings.timeline.sqlite.document_migration import migrate_file
from tidings.timeline.sqlite.store import SqliteStore

DEVICE = Device("fcm", "a-token-of-a-device")
UNTIL = NOW + SECOND


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "old.db"


def key(channel: ChannelName, to: str | Device) -> str:
    """As the columns of addresses have it."""
    return f"{channel}/{digest(channel, to)}"


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table, by column, without their numbers."""
    connection = apsw.Connection(str(path))
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY 2, 3")
    found = [
        {name: value for (name, *_), value in zip(cursor.get_description(), row, strict=True) if name != "entry"}
        for row in cursor
    ]
    connection.close()
    return found


def migrated(path: Path, table: str, *documents: OldDocument) -> list[dict[str, Any]]:
    """The rows that documents become, of which the version and the body are left out after they were checked."""
    write_file(path, documents)
    migrate_file(str(path))
    found = rows(path, table)
    bodies = {each.name: (version, each.body) for version, each in enumerate(documents, 1)}
    assert all((row.pop("version"), row.pop("body")) == bodies[row[TABLES[table].key]] for row in found)
    return found


def test_users(path: Path) -> None:
    plain = User(
        "ann", "Ann", "Ann@Example.com", "+15550100", (DEVICE,), "https://example.com/h", "Europe/Berlin", "de"
    )
    odd = User("odd", email="Ärger@müller.de")
    found = migrated(path, "app_user", *(old_user(ACME, each) for each in (plain, odd, User("bare"))))
    nothing = dict.fromkeys(("until", "name", "email", "phone", "webhook", "locale", "email_key", "phone_key"))
    assert found == [
        {
            "tenant": ACME,
            "id": "ann",
            "until": None,
            "name": "Ann",
            "email": "Ann@Example.com",
            "phone": "+15550100",
            "webhook": "https://example.com/h",
            "zone": "Europe/Berlin",
            "locale": "de",
            "email_key": key("email", "ann@example.com"),
            "phone_key": key("sms", "+15550100"),
        },
        nothing | {"tenant": ACME, "id": "bare", "zone": "UTC"},
        nothing
        | {"tenant": ACME, "id": "odd", "zone": "UTC", "email": "Ärger@müller.de"}
        | {"email_key": key("email", "Ärger@müller.de")},
    ]


def test_a_user_whose_digest_was_another_in_version_0_1(path: Path) -> None:
    """An address in Punycode, or outside ASCII, had a digest for each way of writing it."""
    user = User("odd", email="x@xn--mller-kva.de")
    old = old_user(ACME, user)._replace(tags=("all", "at:email/" + "0" * 32))
    [found] = migrated(path, "app_user", old)
    assert found["email_key"] == key("email", "x@müller.de")


def test_notifications(path: Path) -> None:
    full = Notification(
        "n1",
        ACME,
        ("email", "sms"),
        user="ann",
        template="welcome",
        version=3,
        priority="high",
        category="news",
        batch="b",
        created=5,
        cancelled=6,
        first="n0",
    )
    to_address = Notification("n2", ACME, ("email",), to="{x}@Example.com", created=7)
    to_device = Notification("n3", ACME, ("push",), to=DEVICE, created=8)
    puts = [old_notification(full, UNTIL), old_notification(to_address), old_notification(to_device)]
    first, second, third = migrated(path, "notification", *puts)
    assert first == {
        "tenant": ACME,
        "id": "n1",
        "until": UNTIL,
        "user_id": "ann",
        "address_key": None,
        "channels": "email,sms",
        "template": "welcome",
        "template_version": 3,
        "category": "news",
        "priority": "high",
        "batch": "b",
        "created": 5,
        "cancelled": 6,
        "duplicate_of": "n0",
        "is_local": None,
    }
    assert (second["address_key"], second["category"], second["priority"]) == (
        key("email", "{x}@example.com"),
        "transactional",
        "normal",
    )
    assert third["address_key"] == key("push", DEVICE)


def test_deliveries_and_the_ids_of_providers(path: Path) -> None:
    full = Delivery(
        "n1/1",
        "n1",
        NOW,
        "failed",
        "timeout",
        "email",
        "ann",
        "ann@example.com",
        attempts=(Attempt(1, "email", "smtp", NOW),) * 2,
        claim=Claim("w1", NOW + 1),
        turn=3,
        next_try=NOW + 2,
        changed=NOW + 3,
        sent=NOW + 4,
        provider="smtp",
        provider_id="p1",
    )
    bare = Delivery("n2/1", "n2", NOW, channel="sms", address="+15550100")
    puts = [old_delivery(ACME, full), old_delivery(ACME, bare)]
    assert migrated(path, "delivery", *puts) == [
        {
            "tenant": ACME,
            "name": "n1/1",
            "until": puts[0].until,
            "notification": "n1",
            "user_id": "ann",
            "address_key": None,
            "channel": "email",
            "state": "failed",
            "reason": "timeout",
            "trouble": "failed",
            "due": NOW,
            "next_try": NOW + 2,
            "turn": 3,
            "attempts": 2,
            "claim_worker": "w1",
            "claim_until": NOW + 1,
            "provider": "smtp",
            "provider_id": "p1",
            "sent": NOW + 4,
            "changed": NOW + 3,
            "held_for": None,
        },
        dict.fromkeys(
            (
                "until",
                "user_id",
                "reason",
                "trouble",
                "next_try",
                "claim_worker",
                "claim_until",
                "provider",
                "provider_id",
                "sent",
                "held_for",
            )
        )
        | {"tenant": ACME, "name": "n2/1", "notification": "n2", "channel": "sms", "state": "pending", "due": NOW}
        | {"address_key": key("sms", "+15550100"), "turn": 1, "attempts": 0, "changed": 0},
    ]
    held = Delivery("n3/1", "n3", NOW, reason="quiet_hours", channel="sms", user="ann", next_try=NOW + 1)
    assert [row["held_for"] for row in migrated(path, "delivery", old_delivery(ACME, held))][-1] == "ann"
    sent = [old_provider_message(ACME, full, "smtp/p1", NOW), old_provider_message(ACME, bare, "smtp/p2", NOW)]
    found = migrated(path, "provider_message", *sent)
    assert [(row["tenant"], row["id"], row["owner"], row["delivery"], row["user_key"]) for row in found] == [
        (SHARED, "smtp/p1", ACME, "n1/1", f"{ACME}/ann"),
        (SHARED, "smtp/p2", ACME, "n2/1", None),
    ]
    assert {(row["created"], row["until"]) for row in found} == {(NOW, sent[0].until)}


def test_the_other_kinds(path: Path) -> None:
    tags = ("user:" + "ann" * 20,)
    dedupe = OldDocument(ACME, "dedupe", "a-digest", encode({"notification": "n1"}), tags, NOW, UNTIL)
    [found] = migrated(path, "dedupe_key", dedupe)
    assert found == {
        "tenant": ACME,
        "digest": "a-digest",
        "until": UNTIL,
        "notification": "n1",
        "user_id": "ann" * 20,
        "created": NOW,
    }
    template = OldDocument(ACME, "template", "t", b'{"version":3,"changed":5,"deleted":true}')
    [found] = migrated(path, "template", template)
    assert (found["latest"], found["changed"], found["deleted"]) == (3, 5, 1)
    version = OldDocument(ACME, "template_version", "t/3", b'{"name":"t","parts":{},"version":3}')
    [found] = migrated(path, "template_version", version)
    assert (found["template"], found["number"]) == ("t", 3)
    entries = [InboxEntry("m1", "ann", "Hello", "x", NOW), InboxEntry("m2", "ann", "Bye", "y", NOW, NOW + 1)]
    lines = [
        OldDocument(ACME, "inbox", f"ann/{e.id}", encode(e), ("user:ann", "unread:ann"), e.at, UNTIL) for e in entries
    ]
    assert migrated(path, "inbox", *lines) == [
        {"tenant": ACME, "id": "ann/m1", "until": UNTIL, "user_id": "ann", "unread_by": "ann", "title": "Hello"}
        | {"created": NOW, "read": None},
        {"tenant": ACME, "id": "ann/m2", "until": UNTIL, "user_id": "ann", "unread_by": None, "title": "Bye"}
        | {"created": NOW, "read": NOW + 1},
    ]
    bucket = OldDocument(SHARED, "throttle", "smtp", encode(Bucket(500, NOW)), until=UNTIL)
    [found] = migrated(path, "rate_limit", bucket)
    assert (found["provider"], found["parts"], found["at"]) == ("smtp", 500, NOW)
    breaker = OldDocument(SHARED, "breaker", "smtp", encode(Breaker(NOW, 2, "timeout", "w1")), ("all",))
    [found] = migrated(path, "circuit_breaker", breaker)
    assert (found["name"], found["reason"], found["open_until"], found["times"]) == ("smtp", "timeout", NOW, 2)
    assert found["worker"] == "w1"


class Suppression(msgspec.Struct, frozen=True, omit_defaults=True):
    """A suppression as it is stored, now and in version 0.1."""

    channel: ChannelName
    address: str | None
    reason: str
    since: int
    category: str | None = None
    user: str | None = None


def suppressed(name: str, kept: Suppression) -> OldDocument:
    return OldDocument(ACME, "suppressed", name, encode(kept), ("all",), kept.since)


def test_suppressions_get_the_keys_of_today(path: Path) -> None:
    today = digest("email", "x@müller.de")
    documents = [
        suppressed("email/old", Suppression("email", "X@Müller.de", "bounced", 1, None, "ann")),
        suppressed(f"email/{today}", Suppression("email", "x@xn--mller-kva.de", "complained", 2)),
        suppressed("email/older", Suppression("email", "x@MÜLLER.de", "bounced", 3)),
        suppressed("email/news/x", Suppression("email", "x@müller.de", "left", 4, "news")),
        suppressed("email/erased", Suppression("email", None, "bounced", 5)),
        OldDocument(ACME, "suppression_keys", "2", b"{}"),
    ]
    write_file(path, documents)
    migrate_file(str(path))
    found = rows(path, "suppression")
    assert {(row["id"], row["address"], row["reason"], row["since"], row["category"]) for row in found} == {
        (f"email/{today}", "x@xn--mller-kva.de", "complained", 2, None),
        (f"email/{today}/news", "x@xn--mller-kva.de", "left", 4, "news"),
        ("email/erased", None, "bounced", 5, None),
    }
    assert {row["address_key"] for row in found} == {f"email/{today}", "email/erased"}
    assert {row["channel"] for row in found} == {"email"}
    for row in found:
        kept = msgspec.json.decode(row["body"], type=Suppression)
        assert (kept.address, kept.reason, kept.since) == (row["address"], row["reason"], row["since"])


_MIGRATE = """
import sys
from tidings.timeline.sqlite import document_migration
document_migration.SLICE_DOCUMENTS = 7
document_migration.migrate_file(sys.argv[1])
"""


def _migrate_until(path: Path, point: str) -> int:
    """Migrate in a process that is killed at a crash point; returns its exit code."""
    environment = {**os.environ, crash.VARIABLE: point}
    return subprocess.run([sys.executable, "-c", _MIGRATE, path], env=environment, check=False).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["migrate.written:1", "migrate.committed:1", "migrate.written:4", "migrate.committed:8"]
)
async def test_a_migration_that_was_killed_continues_when_the_file_is_opened(path: Path, point: str) -> None:
    users = [User(f"u{n:02}", email=f"u{n}@example.com") for n in range(50)]
    write_file(path, [old_user(ACME, user) for user in users])
    assert _migrate_until(path, point) == -signal.SIGKILL
    moved = 7 * (int(point[-1]) - point.startswith("migrate.written"))
    assert len(rows(path, "app_user")) == min(moved, 50)

    store = await SqliteStore.open(path)
    assert await store.acquire(0, SECOND)
    found = await store.tables.get([RowKey("app_user", ACME, user.id) for user in users], NOW)
    assert [row.body for row in found if row is not None] == [encode(user) for user in users]
    assert await names(store, declared.USERS_BY_EMAIL, key("email", "u7@example.com")) == ["u07"]
    assert store._reader.execute("SELECT version FROM row_version").get == len(users)
    indexes = {index.name for table in TABLES.values() for index in table.indexes}
    there = store._reader.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")
    assert indexes <= {name for (name,) in there}
    await store.close()


def test_dropped_documents_are_in_no_file_and_nothing_is_moved_again(path: Path) -> None:
    names = [f"ada-lovelace-{number}" for number in range(300)]
    write_file(path, [OldDocument(ACME, "suppression_keys", name, b"{}", ("ada",)) for name in names])
    assert any(b"lovelace" in file.read_bytes() for file in path.parent.iterdir())
    migrate_file(str(path))
    assert not any(b"lovelace" in file.read_bytes() for file in path.parent.iterdir())
    connection = apsw.Connection(str(path))
    found = connection.execute("SELECT name FROM sqlite_schema WHERE name IN ('document', 'tagged', 'cabinet')")
    assert found.fetchall() == []
    connection.close()
    migrate_file(str(path))


async def test_a_start_that_migrates_a_file_logs_the_layouts_and_the_time(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tidings.store")
    known = Layouts(LAYOUTS).known
    for layouts in (LAYOUTS, LAYOUTS, later(LAYOUTS, tmp_path, more="CREATE TABLE more (one);")):
        assert caplog.records == [], "a new file, and one that has the newest layout, are not migrated"
        await (await SqliteStore.open(path, SimulatedClock(), layouts=layouts)).close()
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "INFO", f"migrated {path} from layout {known} to layout {known + 1} in 0 us"
    )  # fmt: skip


async def test_a_start_that_only_moves_documents_says_so(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tidings.store")
    write_file(path, [old_user("acme", User("ada"))])
    for _ in range(2):
        await (await SqliteStore.open(path, SimulatedClock())).close()
    [record] = caplog.records
    assert record.getMessage() == f"completed the migration of {path} to layout {Layouts(LAYOUTS).known} in 0 us"
