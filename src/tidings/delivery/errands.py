"""What lies on the topics of notifications: errands as records, and as schedules of their own."""

from hashlib import blake2b

import msgspec

from tidings.delivery.filing import delivery_name
from tidings.domain.errors import Invalid
from tidings.domain.names import ID_BYTES_MOST, SUFFIX_BYTES_MAX, check_id
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import DEAD_TOPIC, PRIORITIES, DeliveryJob, Notification, topic
from tidings.domain.schedules.command import CONTENT_BYTES, Add, Priority
from tidings.domain.schedules.schedule import Message, Record, pack, unpack
from tidings.domain.schedules.when import Once

NOTIFICATION_BYTES_MAX = ID_BYTES_MOST - SUFFIX_BYTES_MAX
DELIVERY_BYTES_MAX = ID_BYTES_MOST - 19  # its turn comes behind it
ATTEMPT_MAX = 999_999_999

REASON_HEADER, SOURCE_HEADER = "tidings-reason", "tidings-source"

_errand = msgspec.json.Decoder(DeliveryJob)


class Dead(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery that was given up: what became of it, and the errand that would try it again."""

    delivery: Delivery
    errand: DeliveryJob


_dead = msgspec.json.Decoder(Dead)


def read(record: Record, tenant: str) -> DeliveryJob:
    """The errand of a record; `Invalid` if it is none that can be run. Whose it is says the topic, not the text."""
    try:
        errand = _errand.decode(unpack(record.message).value or b"")
    except (msgspec.MsgspecError, Invalid, UnicodeDecodeError) as error:
        raise Invalid("record", f"is not a valid delivery record: {str(error)[:200]}") from None
    if (errand.notification is None) == (errand.inline is None):
        raise Invalid("record", "must either name a notification or carry one")
    if errand.inline is not None:
        inline = msgspec.structs.replace(errand.inline, tenant=tenant, id=errand.inline.id or record.id)
        errand = msgspec.structs.replace(errand, inline=inline)
        _check_inline(inline)
    _check(errand)
    return errand


def _check(errand: DeliveryJob) -> None:
    """Anybody may publish here: what becomes a name in the store has to be one there."""
    if errand.notification is not None:
        check_id(errand.notification, NOTIFICATION_BYTES_MAX, "notification")
    if errand.delivery is not None:
        check_id(errand.delivery, DELIVERY_BYTES_MAX, "delivery")
    if not 0 < errand.attempt <= ATTEMPT_MAX:
        raise Invalid("attempt", f"must be between 1 and {ATTEMPT_MAX:,}")


def _check_inline(inline: Notification) -> None:
    named = {"id": inline.id, "user": inline.user, "template": inline.template, "category": inline.category}
    for field, text in named.items():
        if text is not None:
            check_id(text, NOTIFICATION_BYTES_MAX, field)
    if len(set(inline.channels)) < len(inline.channels):
        raise Invalid("channels", "names one twice: name each once")


def named(errand: DeliveryJob, record: Record, notification: Notification) -> str:
    """The name of its delivery: of the occurrence, and of the channel where it goes to each of them."""
    if errand.delivery is not None:
        return errand.delivery
    channel = notification.channels[errand.channel] if notification.spread == "all" else None
    return delivery_name(notification.id, record.number, record.generation, channel)


def message(errand: DeliveryJob) -> bytes:
    """An errand as a record's message, as the timeline keeps it."""
    return pack(Message(None, msgspec.json.encode(errand)))


def turn(tenant: str, notification: Notification, errand: DeliveryJob, due: int) -> Add:
    """A delivery's next turn on the timeline. The same turn asked for again is the same schedule, whatever its time."""
    assert errand.delivery is not None, "a turn is that of a delivery"
    name = f"{errand.delivery}~{errand.attempt}"
    where = topic(notification.channels[errand.channel], notification.priority)
    return _add(tenant, name, where, message(errand), due, PRIORITIES[notification.priority])


def dead_letter(tenant: str, errand: DeliveryJob, delivery: Delivery, now: int) -> Add:
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
    where = f"{record.topic}/{record.partition}/{record.offset}"
    try:
        came = unpack(record.message)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # it is not even a message
        came = Message(None, record.message)
    headers = (*came.headers, (REASON_HEADER, reason.encode()), (SOURCE_HEADER, where.encode()))
    packed = pack(Message(came.key, came.value, headers))
    return _add(tenant, f"{where}~poison", DEAD_TOPIC, packed, now)


def read_dead(value: bytes) -> Dead:
    """What a dead letter says."""
    return _dead.decode(value)


def _add(tenant: str, name: str, where: str, packed: bytes, due: int, priority: Priority = Priority.NORMAL) -> Add:
    content = blake2b(f"{where} {name}".encode(), digest_size=CONTENT_BYTES).digest()
    return Add(tenant, name, where, Once(due), packed, content, due, priority)
