"""The records on the topics of notifications: delivery jobs, their retries as schedules, and dead letters."""

from hashlib import blake2b

import msgspec

from tidings.delivery.rows import delivery_name
from tidings.domain.errors import Invalid
from tidings.domain.names import ID_BYTES_MOST, SUFFIX_BYTES_MAX, check_id
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.notification import DEAD_TOPIC, PRIORITIES, DeliveryJob, Notification, topic
from tidings.domain.schedules.command import CONTENT_BYTES, Add, Priority
from tidings.domain.schedules.schedule import Message, Record, pack, unpack
from tidings.domain.schedules.when import Once

NOTIFICATION_BYTES_MAX = ID_BYTES_MOST - SUFFIX_BYTES_MAX
DELIVERY_BYTES_MAX = ID_BYTES_MOST - 19  # the number of its turn is appended
ATTEMPT_MAX = 999_999_999

REASON_HEADER, SOURCE_HEADER = "tidings-reason", "tidings-source"

_decoder = msgspec.json.Decoder(DeliveryJob)


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery that has failed, and the job that would try it again (`errand` in the JSON of all versions)."""

    delivery: Delivery
    job: DeliveryJob = msgspec.field(name="errand")


_dead_decoder = msgspec.json.Decoder(DeadLetter)


def read_job(record: Record, tenant: str) -> DeliveryJob:
    """The job in a record; `Invalid` if it cannot be run. The tenant is that of the topic, whatever the record says."""
    try:
        job = _decoder.decode(unpack(record.message).value or b"")
    except (msgspec.MsgspecError, Invalid, UnicodeDecodeError) as error:
        raise Invalid("record", f"is not a valid delivery record: {str(error)[:200]}") from None
    if (job.notification is None) == (job.inline is None):
        raise Invalid("record", "must either name a notification or carry one")
    if job.inline is not None:
        inline = msgspec.structs.replace(job.inline, tenant=tenant, id=job.inline.id or record.id)
        job = msgspec.structs.replace(job, inline=inline)
        _check_inline(inline)
    _check(job)
    return job


def _check(job: DeliveryJob) -> None:
    """Check what becomes a key in the store."""
    if job.notification is not None:
        check_id(job.notification, NOTIFICATION_BYTES_MAX, "notification")
    if job.delivery is not None:
        check_id(job.delivery, DELIVERY_BYTES_MAX, "delivery")
    if not 0 < job.attempt <= ATTEMPT_MAX:
        raise Invalid("attempt", f"must be between 1 and {ATTEMPT_MAX:,}")


def _check_inline(inline: Notification) -> None:
    named = {"id": inline.id, "user": inline.user, "template": inline.template, "category": inline.category}
    for field, text in named.items():
        if text is not None:
            check_id(text, NOTIFICATION_BYTES_MAX, field)
    if len(set(inline.channels)) < len(inline.channels):
        raise Invalid("channels", "names one twice: name each once")


def delivery_name_of(job: DeliveryJob, record: Record, notification: Notification) -> str:
    """The name of its delivery: that of the occurrence, with the channel if it goes to each of them."""
    if job.delivery is not None:
        return job.delivery
    channel = notification.channels[job.channel] if notification.spread == "all" else None
    return delivery_name(notification.id, record.number, record.generation, channel)


def job_message(job: DeliveryJob) -> bytes:
    """A job as the packed message of a record."""
    return pack(Message(None, msgspec.json.encode(job)))


def retry_id(delivery: str, attempt: int) -> str:
    """The id of the schedule for another turn of a delivery."""
    return f"{delivery}~{attempt}"


def retry_schedule(tenant: str, notification: Notification, job: DeliveryJob, due: int) -> Add:
    """The schedule of a delivery's next turn. The same turn is the same schedule, whatever its time."""
    assert job.delivery is not None, "a turn belongs to a delivery"
    name = retry_id(job.delivery, job.attempt)
    where = topic(notification.channels[job.channel], notification.priority)
    return _add(tenant, name, where, job_message(job), due, PRIORITIES[notification.priority])


def dead_letter(tenant: str, job: DeliveryJob, delivery: Delivery, now: int) -> Add:
    """A failed delivery, with what is needed to try it again. A log only grows, so it must not name a person."""
    again = msgspec.structs.replace(job, delivery=delivery.name, attempt=delivery.turn + 1)
    shown = delivery if job.inline is not None else _without_details(delivery)
    value = msgspec.json.encode(DeadLetter(delivery=shown, job=again))
    return _add(tenant, f"{delivery.name}~{delivery.turn}~dead", DEAD_TOPIC, pack(Message(None, value)), now)


def _without_details(delivery: Delivery) -> Delivery:
    """Providers repeat an address, each in its own way, in their answers: only the delivery's row keeps these."""
    attempts = tuple(msgspec.structs.replace(one, detail="") for one in delivery.attempts)
    news = tuple(msgspec.structs.replace(one, reason="") for one in delivery.news)
    reason = delivery.reason.partition(":")[0]
    return msgspec.structs.replace(delivery, address=None, reason=reason, attempts=attempts, news=news, history=())


def poison_record(tenant: str, record: Record, reason: str, now: int) -> Add:
    """A record that is not a valid job as a dead letter: as it came, with the reason."""
    where = f"{record.topic}/{record.partition}/{record.offset}"
    try:
        came = unpack(record.message)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # it is not even a message
        came = Message(None, record.message)
    headers = (*came.headers, (REASON_HEADER, reason.encode()), (SOURCE_HEADER, where.encode()))
    packed = pack(Message(came.key, came.value, headers))
    return _add(tenant, f"{where}~poison", DEAD_TOPIC, packed, now)


def read_dead_letter(value: bytes) -> DeadLetter:
    """The content of a dead letter."""
    return _dead_decoder.decode(value)


def _add(tenant: str, name: str, where: str, packed: bytes, due: int, priority: Priority = Priority.NORMAL) -> Add:
    content = blake2b(f"{where} {name}".encode(), digest_size=CONTENT_BYTES).digest()
    return Add(tenant, name, where, Once(due), packed, content, due, priority)
