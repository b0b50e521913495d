"""What lies on the topics of notifications: errands as records, and as schedules of their own."""

from hashlib import blake2b

import msgspec

from tidings.delivery.filing import delivery_name
from tidings.domain.command import CONTENT_BYTES, Add, Priority
from tidings.domain.delivery import Delivery
from tidings.domain.errors import Invalid
from tidings.domain.message import Message, pack, unpack
from tidings.domain.notification import DEAD_TOPIC, PRIORITIES, Errand, Notification, topic
from tidings.domain.schedule import Record
from tidings.domain.when import Once

REASON_HEADER, SOURCE_HEADER = "tidings-reason", "tidings-source"

_errand = msgspec.json.Decoder(Errand)


class Dead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery that was given up: what became of it, and the errand that would try it again."""

    delivery: Delivery
    errand: Errand


_dead = msgspec.json.Decoder(Dead)


def read(record: Record, tenant: str) -> Errand:
    """The errand of a record; `Invalid` if it is none that can be run. Whose it is says the topic, not the text."""
    value = unpack(record.message).value
    try:
        errand = _errand.decode(value or b"")
    except (msgspec.MsgspecError, Invalid, UnicodeDecodeError) as error:
        raise Invalid("record", f"is no errand: {str(error)[:200]}") from None
    if (errand.notification is None) == (errand.inline is None):
        raise Invalid("record", "names no notification and carries none, or both")
    if errand.inline is None:
        return errand
    inline = msgspec.structs.replace(errand.inline, tenant=tenant, id=errand.inline.id or record.id)
    return msgspec.structs.replace(errand, inline=inline)


def named(errand: Errand, record: Record, notification: Notification) -> str:
    """The name of its delivery: of the occurrence, and of the channel where it goes to each of them."""
    if errand.delivery is not None:
        return errand.delivery
    channel = notification.channels[errand.channel] if notification.spread == "all" else None
    return delivery_name(notification.id, record.number, record.generation, channel)


def message(errand: Errand) -> bytes:
    """An errand as a record's message, as the timeline keeps it."""
    return pack(Message(None, msgspec.json.encode(errand)))


def turn(tenant: str, notification: Notification, errand: Errand, due: int) -> Add:
    """A delivery's next turn on the timeline. The same turn asked for again is the same schedule, whatever its time."""
    assert errand.delivery is not None, "a turn is that of a delivery"
    name = f"{errand.delivery}~{errand.attempt}"
    where = topic(notification.channels[errand.channel], notification.priority)
    return _add(tenant, name, where, message(errand), due, PRIORITIES[notification.priority])


def dead_letter(tenant: str, errand: Errand, delivery: Delivery, now: int) -> Add:
    """What was given up, with what it needs to be tried again. A log only grows: it must not say who a person is."""
    again = msgspec.structs.replace(errand, delivery=delivery.name, attempt=delivery.turn + 1)
    told = delivery if errand.inline is not None else _without_words(delivery)
    value = msgspec.json.encode(Dead(told, again))
    return _add(tenant, f"{delivery.name}~{delivery.turn}~dead", DEAD_TOPIC, pack(Message(None, value)), now)


def _without_words(delivery: Delivery) -> Delivery:
    """Providers repeat an address, each in its own way, in what they say: only the delivery keeps their words."""
    attempts = tuple(msgspec.structs.replace(one, detail="") for one in delivery.attempts)
    news = tuple(msgspec.structs.replace(one, reason="") for one in delivery.news)
    reason = delivery.reason.partition(":")[0]
    return msgspec.structs.replace(delivery, address=None, reason=reason, attempts=attempts, news=news, history=())


def poison_letter(tenant: str, record: Record, reason: str, now: int) -> Add:
    """A record that is no errand, as it came, and why."""
    came, where = unpack(record.message), f"{record.topic}/{record.partition}/{record.offset}"
    headers = (*came.headers, (REASON_HEADER, reason.encode()), (SOURCE_HEADER, where.encode()))
    packed = pack(Message(came.key, came.value, headers))
    return _add(tenant, f"{where}~poison", DEAD_TOPIC, packed, now)


def read_dead(value: bytes) -> Dead:
    """What a dead letter says."""
    return _dead.decode(value)


def _add(tenant: str, name: str, where: str, packed: bytes, due: int, priority: Priority = Priority.NORMAL) -> Add:
    content = blake2b(f"{where} {name}".encode(), digest_size=CONTENT_BYTES).digest()
    return Add(tenant, name, where, Once(due), packed, content, due, priority)
