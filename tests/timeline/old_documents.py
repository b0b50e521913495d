"""Documents as version 0.1 stored them, in a file and in a schema that have the current layout otherwise."""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.address_key import digest
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.tables import SHARED
from tidings.domain.notifications.user import User
from tidings.timeline.postgres.database import inside
from tidings.timeline.postgres.migration import LAYOUTS as SCHEMA_LAYOUTS
from tidings.timeline.postgres.store import PostgresStore
from tidings.timeline.sqlite.database import LAYOUTS as FILE_LAYOUTS
from tidings.timeline.sqlite.database import prepare

RETENTION_US = 30 * 86_400_000_000

encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_INSERT = """
INSERT INTO document (tenant, kind, name, version, "order", until, tags, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_COPY = """
COPY tidings.document (key, version, "order", until, shelves, tenant, kind, name, tags, body) FROM STDIN
"""


class OldDocument(NamedTuple):
    """A document, which was found by its name and by each of its tags."""

    tenant: str
    kind: str
    name: str
    body: bytes
    tags: tuple[str, ...] = ()
    order: int = 0
    until: int | None = None

    @property
    def packed_tags(self) -> bytes:
        return _pack(self.tags) if self.tags else b""


def _at(channel: Any, to: str | Device) -> str:
    return f"at:{channel}/{digest(channel, to)}"


def old_user(tenant: str, user: User) -> OldDocument:
    tags = ["all"]
    if user.email is not None:
        tags.append(_at("email", user.email))
    if user.phone is not None:
        tags.append(_at("sms", user.phone))
    return OldDocument(tenant, "user", user.id, encode(user), tuple(tags))


def old_notification(notification: Notification, until: int | None = None) -> OldDocument:
    tags = ("all", *(f"channel:{channel}" for channel in notification.channels))
    if notification.user is not None:
        tags += (f"user:{notification.user}",)
    return OldDocument(
        notification.tenant, "notification", notification.id, encode(notification), tags, notification.created, until
    )


def old_delivery(tenant: str, delivery: Delivery) -> OldDocument:
    tags = ("all", f"notification:{delivery.notification}")
    until = delivery.changed + RETENTION_US if delivery.is_settled else None
    return OldDocument(tenant, "delivery", delivery.name, encode(delivery), tags, delivery.due, until)


def old_provider_message(tenant: str, delivery: Delivery, name: str, now: int) -> OldDocument:
    tags = () if delivery.user is None else (f"user:{tenant}/{delivery.user}",)
    body = encode({"tenant": tenant, "delivery": delivery.name})
    return OldDocument(SHARED, "sent", name, body, tags, now, now + RETENTION_US)


def write_file(path: Path, documents: Iterable[OldDocument]) -> None:
    """Make a file with these documents, under the versions 1, 2 and so on."""
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    prepare(str(path), FILE_LAYOUTS)
    connection = apsw.Connection(str(path))
    version = 0
    with connection:
        for version, each in enumerate(documents, 1):
            values = (each.tenant, each.kind, each.name, version, each.order, each.until, each.packed_tags, each.body)
            connection.execute(_INSERT, values)
            for tag in each.tags:
                row = (each.tenant, each.kind, tag, each.order, each.name)
                connection.execute("INSERT INTO tagged VALUES (?, ?, ?, ?, ?)", row)
        connection.execute("UPDATE cabinet SET version = ?", (version,))
    connection.close()


async def write_schema(store: PostgresStore, documents: Iterable[OldDocument]) -> None:
    """Give these documents to an open store, which had none."""
    schema = store._context.options.schema
    progress = (SCHEMA_LAYOUTS / "0005_tables.sql").read_text().partition("CREATE TABLE tidings.document_migration")
    layout = (SCHEMA_LAYOUTS / "0003_cabinet.sql").read_text() + progress[1] + progress[2]
    version = 0
    async with store._pools.work.transaction() as connection:
        await connection.execute(f"SET LOCAL statement_timeout = 0; {inside(schema, layout)}".encode())
        async with connection.cursor() as cursor, cursor.copy(inside(schema, _COPY).encode()) as copy:
            for version, each in enumerate(documents, 1):
                names = [name.encode() for name in (each.tenant, each.kind, each.name)]
                key = blake2b(_pack((each.tenant, each.kind, each.name)), digest_size=16).hexdigest()
                await copy.write_row((key, version, each.order, each.until, [], *names, each.packed_tags, each.body))
        if version:
            moved = inside(schema, "SELECT setval('tidings.document_version', %s)")
            await connection.execute(moved.encode(), (version,))
