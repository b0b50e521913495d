"""The wire of notifications: `tidings.notify.<tenant>` in, and a worker tells the person.

The record's value is the notification as JSON, as it is sent over HTTP, and it is accepted in the same way. Its `id`
names it: sent again it is the same one. Without one the header `tidings-id` does, or else the record's place.
"""

from typing import ClassVar

from tidings.domain.names import DEFAULT_TENANT
from tidings.wires.destinations import NATIVE, NATIVE_REJECTIONS
from tidings.wires.headers import derived_id, last_of, text_of
from tidings.wires.moments import since_of
from tidings.wires.native import ID
from tidings.wires.record import Record, Tell
from tidings.wires.wire import Wire, affixed

NOTIFICATIONS = f"{NATIVE}notify."
ID_BYTES_MAX = 90  # of a notification's id: more is put behind it than behind that of a schedule


class Notify(Wire):
    """Reads notifications; whose they are says the topic."""

    name = "notify"
    own_tenants = frozenset({DEFAULT_TENANT})
    sources: ClassVar = {}

    def tenant_of(self, topic: str) -> str | None:
        return affixed(topic, NOTIFICATIONS)

    def requests(self, tenant: str) -> tuple[str, ...]:
        return (NOTIFICATIONS + tenant,)

    def rejections(self, tenant: str) -> str:
        return NATIVE_REJECTIONS + tenant

    def ask(self, tenant: str, record: Record) -> Tell:
        given = text_of(last_of(record.headers, frozenset({ID})), ID)
        name = given or derived_id(record, ID_BYTES_MAX).replace("/", ".")
        return Tell(tenant, name, record.value or b"", since_of(record))
