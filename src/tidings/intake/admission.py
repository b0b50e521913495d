"""Admission: validates a request and turns it into an `Add` command, or refuses it and names the field."""

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import blake2b
from itertools import count
from operator import attrgetter
from zlib import crc32

import msgspec

from tidings.domain.errors import Invalid, check_all
from tidings.domain.names import NOT_RELEASED, Bus, Past, check_id
from tidings.domain.notifications.notification import PREFIX, TOPICS, is_reserved
from tidings.domain.schedules import iso8601
from tidings.domain.schedules.command import CONTENT_BYTES, NO_CONTENT, Add, CommandBatch, Priority, UniformAdds
from tidings.domain.schedules.lateness import (
    GRACE_DEFAULT_US,
    Lateness,
    deadline,
    is_ahead,
    jittered,
    overdue_count,
    shortened,
)
from tidings.domain.schedules.reschedule import calendar_of, zone_of
from tidings.domain.schedules.schedule import (
    KAFKA,
    MADE_ID,
    MADE_PREFIX,
    Headers,
    Limits,
    Message,
    PlainRequest,
    Request,
    pack,
)
from tidings.domain.schedules.when import Once, When, occurrence
from tidings.domain.units import rough_span
from tidings.intake.schedule_time import field_of, read_at, read_when, since

SECOND_US = 1_000_000
PAST_US = 60 * SECOND_US  # what is less late is not in the past: clocks differ, and requests take their time
TOPICS_SEEN_MAX = 10_000
NAME_SHOWN_CHARS = 48
NOT_TEXT = "hold half of a surrogate pair, which is not text: send whole characters"

_DURATIONS = ("expires_after", "late_grace", "late_max")
_RESERVED = (
    "is reserved for the deliveries of notifications: choose another topic; "
    "POST /v1/notifications or `tidings notify` sends a notification"
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]+\Z")
_DEFAULT_LATENESS = Lateness()
_PLAIN_FIELDS = frozenset({"topic", "value", "key", "headers", "id", "at", "priority"})
_has_more: Callable[[Request], bool] = eval(  # field by field: `operator.attrgetter` takes three times as long
    "lambda request: "
    + " or ".join(f"request.{name} is not None" for name in Request.__struct_fields__ if name not in _PLAIN_FIELDS)
)
_encode = msgspec.json.Encoder(order="sorted").encode
_PRIORITIES = tuple(str(int(priority)) for priority in Priority)
_NORMAL = Priority.NORMAL  # a member of an enum is slow to look up
_NORMAL_DIGIT = _PRIORITIES[_NORMAL]
# The fields of a request in version 0.1. Every one of them is part of the digest, whether it was given or not.
_DIGEST_FIELDS = (
    "topic", "value", "key", "headers", "id", "at", "every", "priority", "expires_after", "late", "late_grace",
    "late_max", "jitter", "labels", "bus", "since", "timing",
)  # fmt: skip
_digest_values = attrgetter(*_DIGEST_FIELDS)
_EMPTY_DIGEST = blake2b(digest_size=CONTENT_BYTES)  # copied for each digest: cheaper than creating a new one

Forbidden = Callable[[str, str], str | None]


def everything_allowed(_tenant: str, _topic: str) -> str | None:
    """The default of `Admission.forbidden`: every tenant may write to every topic."""
    return None


class Admission:
    """Turns requests of any edge into commands, within the limits of this node.

    `forbidden` says why a tenant may not write to a topic on Kafka, or None if it may.
    """

    def __init__(
        self,
        limits: Limits,
        low_jitter_us: int = 0,
        bus: Bus = "log",
        past: Past = "send",
        forbidden: Forbidden = everything_allowed,
    ) -> None:
        self._bus = bus
        self._past = past
        self._forbidden = forbidden
        self.limits = limits
        self._id_bytes_max = limits.id_bytes_max
        self._low_jitter_us = low_jitter_us
        self._horizon_us = limits.horizon_s * SECOND_US
        # A packed message of at most this size is within every limit on its parts.
        self._small_bytes = min(limits.value_bytes_max, limits.key_bytes_max, limits.headers_bytes_max)
        self._topics_seen: set[str] = set()
        self._destinations_seen: dict[tuple[str, str], str] = {}
        self._without_id = count()

    def admit(self, tenant: str, request: Request, now: int, *, reuse: bool = False, for_delivery: bool = False) -> Add:
        """The command for a request; raises `Invalid` with all fields that are wrong.

        `for_delivery` is set only by Tidings itself: it allows the topics that are reserved for deliveries.
        """
        try:
            return self._admit(tenant, request, now, reuse, for_delivery)
        except Invalid as invalid:
            self._check_each(tenant, request, now, for_delivery, invalid)
            raise

    def admit_plain(self, batch: CommandBatch, tenant: str, plain: PlainRequest, now: int) -> bool:
        """Add a plain request to the columns of a batch; False, and nothing is added, if `admit` must look at it.

        It adds exactly the command that `admit` would return. It refuses nothing: whatever is unusual is False, also
        the first request for each topic.
        """
        schedule_id, topic, at, due, key, value, headers, reuse = plain
        destination = topic if self._bus == "log" else self._destinations_seen.get((tenant, topic))
        if topic not in self._topics_seen or destination is None or not now <= due <= now + self._horizon_us:
            return False
        try:
            message = pack((key, value, headers))
        except UnicodeEncodeError:
            return False
        if len(message) > self._small_bytes or (headers and not self._are_usual(headers, message)):
            return False
        if schedule_id is None:
            content = NO_CONTENT
        elif (
            0 < len(schedule_id) <= self._id_bytes_max
            and schedule_id.isascii()
            and schedule_id.isprintable()
            and not schedule_id.startswith(MADE_PREFIX)
        ):
            digest = _EMPTY_DIGEST.copy()
            digest.update(message + f"{destination} {at!r} {_NORMAL_DIGIT}".encode())
            content = digest.digest()
        else:
            return False
        key_hash = None if key is None else crc32(key)
        batch.append_plain(tenant, (schedule_id, destination, message, content, due, _NORMAL, key_hash, reuse))
        return True

    def _are_usual(self, headers: Headers, message: bytes) -> bool:
        """Whether headers are certainly allowed: not too many, and no NUL in the message, or at least in a name."""
        return len(headers) <= self.limits.headers_max and (
            0 not in message or not any("\0" in name for name, _ in headers)
        )

    def _check_each(self, tenant: str, request: Request, now: int, for_delivery: bool, first: Invalid) -> None:
        """Check every field by itself and raise all errors together. It is called only if the request is wrong."""

        def known() -> None:
            raise first

        check_all(
            known,
            lambda: self._check_destination(request, for_delivery),
            lambda: self._destination(tenant, request),
            lambda: None if request.id is None else check_id(request.id, self.limits.id_bytes_max),
            lambda: _packed(request),
            lambda: self._check_sizes(request),
            lambda: _check_when(request, now, self.limits),
            *(partial(_duration, getattr(request, name), name) for name in _DURATIONS),
            lambda: self._jitter_window_us(request, low=False),
            lambda: self._labels(request.labels),
        )

    def _admit(self, tenant: str, request: Request, now: int, reuse: bool, for_delivery: bool) -> Add:
        if request.topic not in self._topics_seen and not (for_delivery and request.topic in TOPICS):
            self._check_destination(request, for_delivery)
        if request.id is not None:
            self._check_id(request.id)
        on_log = (request.bus or self._bus) == "log"
        destination = request.topic if on_log else self._destination(tenant, request)
        message = _packed(request)
        if len(message) > self._small_bytes or len(request.headers) > self.limits.headers_max:
            self._check_sizes(request)
        is_default = (
            request.expires_after is None
            and request.late is None
            and request.late_grace is None
            and request.late_max is None
        )
        plain = is_default and request.jitter is None and not request.labels
        lateness = _DEFAULT_LATENESS if is_default else _lateness(request)
        if request.every is None and request.timing is None:
            asked = now if request.at is None else request.at if type(request.at) is int else read_at(request, now)
            when: When = Once(asked)
        else:
            when = read_when(request, now, self.limits)
            asked = self._first_due(when)
            self._check_catch_up(when, lateness, since(request, now))
        if not 0 <= asked <= now + self._horizon_us:
            raise self._beyond(when, asked)
        due, note, past_refusal = asked, None, None
        if asked < now and type(when) is Once:
            past_refusal = self._past_refusal(request, asked, now)
            due, lateness, note = self._passed(request, asked, now, lateness)
            when = Once(due)
        labels = None if plain else self._labels(request.labels)
        low = request.priority is Priority.LOW and is_ahead(when, due, now)
        jitter_us = self._jitter(tenant, request, message, low=low) if low or not plain else 0
        if due < now and type(when) is Once:
            jitter_us = 0  # it is missed, and was due when it was due
        return Add(  # positional: this runs for every request, and keyword arguments cost time
            tenant,
            request.id,
            destination,
            when,
            message,
            NO_CONTENT if request.id is None else _digest(request, destination, message, plain=plain),
            due + jitter_us,
            request.priority,
            lateness,
            labels,
            jitter_us,
            None if request.key is None else crc32(request.key),
            reuse,
            None if type(when) is Once or calendar_of(when) is None else now + self._horizon_us,
            note,
            past_refusal,
            0 if not jitter_us or type(when) is Once else self._jitter_window_us(request, low=low),
        )

    def form(self, tenant: str, request: Request, now: int, blank: str) -> "AddForm | None":
        """The commands for deliveries that differ only in id, key, value and one label; `blank` stands in for these.

        None if the due times differ too, by their jitter. Raises `Invalid` for what is wrong with all of them.
        """
        add = self.admit(tenant, request, now, for_delivery=True)
        low = request.priority is Priority.LOW and is_ahead(add.when, add.due, now)
        if self._jitter_window_us(request, low=low):
            return None
        return AddForm(add, _sent(request, add.topic, plain=False), blank, self.limits, self._small_bytes)

    def _past_refusal(self, request: Request, asked: int, now: int) -> str | None:
        """Why a time in the past is refused, None if it is accepted.

        A request that was sent in time and is read late, such as a record on Kafka, is accepted.
        """
        if (request.past or self._past) != "refuse" or since(request, now) - asked <= PAST_US:
            return None
        return f"is {rough_span(now - asked)} in the past: give a future time, or past=send to send it now"

    def _passed(self, request: Request, asked: int, now: int, lateness: Lateness) -> tuple[int, Lateness, str | None]:
        """The due time of a request whose time has passed, its policy counted from then, and a note for its sender.

        It is due now, unless it is too late for its own policy: then it is missed as of its own time.
        """
        late_us = now - asked
        ago = f"due {rough_span(late_us)} ago"
        bound = deadline(asked, lateness)
        if bound is not None and bound[0] < now:
            return asked, lateness, f"{ago}, {NOT_RELEASED} ({bound[1]})"
        note = None
        if late_us > PAST_US:
            note = f"{ago}: sent now" if request.jitter is None else f"{ago}: sent within its jitter from now on"
        return now, shortened(lateness, late_us) if bound is not None else lateness, note

    def _destination(self, tenant: str, request: Request) -> str:
        if (request.bus or self._bus) != "kafka":
            return request.topic
        return self._destinations_seen.get((tenant, request.topic)) or self._on_kafka(tenant, request.topic)

    def _on_kafka(self, tenant: str, topic: str) -> str:
        if self._bus == "log":
            raise Invalid("bus", "this node has the built-in log only: leave it out, or start with --kafka")
        if reason := self._forbidden(tenant, topic):
            raise Invalid("topic", reason)
        destination = KAFKA + topic
        if len(self._destinations_seen) < TOPICS_SEEN_MAX:
            self._destinations_seen[tenant, topic] = destination
        return destination

    def _check_destination(self, request: Request, for_delivery: bool) -> None:
        self.check_topic(request.topic)
        if not for_delivery and is_reserved(request.topic, request.bus or self._bus):
            raise Invalid("topic", _RESERVED)

    def _check_id(self, schedule_id: str) -> None:
        """Refuse an invalid id. Most are printable ASCII, and need no closer look."""
        is_plain = schedule_id.isascii() and schedule_id.isprintable()
        if not is_plain or not 0 < len(schedule_id) <= self.limits.id_bytes_max:
            check_id(schedule_id, self.limits.id_bytes_max)

    def check_topic(self, topic: str) -> None:
        """Refuse a text that is not a valid topic name."""
        if len(topic) > self.limits.topic_chars_max:
            raise Invalid("topic", f"is longer than {self.limits.topic_chars_max} characters")
        if not _TOPIC.match(topic) or topic in {".", ".."}:
            raise Invalid("topic", "use letters, digits, '.', '_' and '-' only (at least one, not '.' or '..')")
        if len(self._topics_seen) < TOPICS_SEEN_MAX and not topic.startswith(PREFIX):
            self._topics_seen.add(topic)

    def _check_sizes(self, request: Request) -> None:
        limits = self.limits
        if request.value is not None and len(request.value) > limits.value_bytes_max:
            raise Invalid("value", f"has {len(request.value)} bytes, at most {limits.value_bytes_max} are accepted")
        if request.key is not None and len(request.key) > limits.key_bytes_max:
            raise Invalid("key", f"has {len(request.key)} bytes, at most {limits.key_bytes_max} are accepted")
        self._check_headers(request.headers)

    def _check_headers(self, headers: Headers) -> None:
        if len(headers) > self.limits.headers_max:
            raise Invalid("headers", f"there are {len(headers)}, at most {self.limits.headers_max} are accepted")
        size = 0
        for name, value in headers:
            size += len(name) + (len(value) if value is not None else 0)
        if size > self.limits.headers_bytes_max:
            raise Invalid("headers", f"have {size} bytes, at most {self.limits.headers_bytes_max} are accepted")

    def _first_due(self, when: When) -> int:
        due = occurrence(when, 1)
        if due is None:
            raise Invalid(field_of(when), "has no occurrence: its end lies before its first moment")
        return due

    def _check_catch_up(self, when: When, lateness: Lateness, sent: int) -> None:
        """Limit the occurrences that were already past when the request was sent and would be released one by one.

        `sent` is the time of sending, so that a Kafka record that is merely read late is not refused for it.
        """
        overdue = overdue_count(when, sent, lateness)
        if overdue > self.limits.catch_up_max:
            detail = f"{lateness.policy} would release {overdue:,} occurrences that have passed already"
            advice = f"let '{field_of(when)}' start later, give a shorter 'late_max', or use fire_latest"
            raise Invalid("late", f"{detail}, at most {self.limits.catch_up_max:,} are accepted: {advice}")

    def _beyond(self, when: When, asked: int) -> Invalid:
        field = field_of(when)
        if asked < 0:
            return Invalid(field, "is before 1970: choose a later time")
        days = self.limits.horizon_s // 86_400
        return Invalid(field, f"is more than {days} days ahead, the most that is accepted (limits.horizon)")

    def _jitter(self, tenant: str, request: Request, message: bytes, *, low: bool) -> int:
        """How much later it is due: within its own jitter, else within that of low priority."""
        window_us = self._jitter_window_us(request, low=low)
        if not window_us:
            return 0
        identity = (
            request.id.encode() if request.id is not None else message + next(self._without_id).to_bytes(8, "big")
        )
        return jittered(0, window_us, tenant.encode() + b"\0" + identity)

    def _jitter_window_us(self, request: Request, *, low: bool) -> int:
        if request.jitter is None:
            return self._low_jitter_us if low else 0
        window_us = iso8601.parse_exact_duration(request.jitter, "jitter")
        if window_us > self.limits.jitter_max_s * SECOND_US:
            raise Invalid("jitter", f"is longer than {self.limits.jitter_max_s} s, the most that is accepted")
        return window_us

    def _labels(self, labels: dict[str, str] | None) -> str | None:
        if not labels:
            return None
        if len(labels) > self.limits.labels_max:
            raise Invalid("labels", f"there are {len(labels)}, at most {self.limits.labels_max} are accepted")
        if any("\0" in text for pair in labels.items() for text in pair):
            raise Invalid("labels", "hold a NUL character, which cannot be searched for: leave it out")
        try:
            text = _encode(labels)
        except UnicodeEncodeError:
            raise Invalid("labels", NOT_TEXT) from None
        if len(text) > self.limits.labels_bytes_max:
            raise Invalid("labels", f"have {len(text)} bytes, at most {self.limits.labels_bytes_max} are accepted")
        return text.decode()


def _packed(request: Request) -> bytes:
    """The message as bytes. A header name with a NUL is refused: Kafka's client would cut the name off there."""
    try:
        message = pack(Message(request.key, request.value, request.headers))
    except UnicodeEncodeError:
        raise Invalid("headers", NOT_TEXT) from None
    if request.headers and 0 in message:  # one scan, and most messages have no NUL anywhere
        _check_names(request.headers)
    return message


def _check_names(headers: Headers) -> None:
    for name, _ in headers:
        if "\0" in name:
            raise Invalid(
                "headers",
                f"the name {name[:NAME_SHOWN_CHARS]!r} holds a NUL character, where Kafka's clients cut it off",
            )


def _digest(request: Request, destination: str, message: bytes, *, plain: bool) -> bytes:
    """A digest of the request as it was sent: `+5s` twice is the same.

    Stores keep it to recognise a repeat, so it must stay as it was in version 0.1: a field that was added later is part
    of it only if it was given.
    """
    digest = _EMPTY_DIGEST.copy()
    digest.update(message + _sent(request, destination, plain=plain))
    return digest.digest()


def _sent(request: Request, destination: str, *, plain: bool) -> bytes:
    """What is digested besides the message."""
    later = {name: given for name in _later_fields(type(request)) if (given := getattr(request, name)) is not None}
    if plain and not later and request.every is None and request.timing is None:
        return f"{destination} {request.at!r} {_PRIORITIES[request.priority]}".encode()
    content = dict(zip(_DIGEST_FIELDS, _digest_values(request), strict=True)) | later
    content |= {"topic": destination, "bus": None, "id": None, "since": None}
    content |= {"value": None, "key": None, "headers": ()}  # they are in the message
    return _encode(content)


class AddForm:
    """Fills in commands that differ only in their id, key, value and one label. Labels and keys are plain words."""

    def __init__(self, add: Add, sent: bytes, blank: str, limits: Limits, small_bytes: int) -> None:
        self.adds = UniformAdds(add)
        self.zone = zone_of(add.when)
        self.expires_after_us = add.lateness.expires_after_us
        self._before, self._after = sent.split(blank.encode())
        self._labels = (add.labels or "").encode().split(blank.encode())
        self._label_chars_max = limits.labels_bytes_max - len(add.labels or "") + len(blank)
        self._id_chars_max = limits.id_bytes_max
        self._small_bytes = small_bytes

    def fill(self, ids: Sequence[str], words: Sequence[bytes], values: Sequence[bytes]) -> bool:
        """Add a command for each id, with this value, and this word as its key and label.

        False, and nothing is added, if one of them may have to be refused.
        """
        together = "".join(ids)
        if not together.isascii() or not together.isprintable():
            return False
        if MADE_PREFIX in together and any(map(MADE_ID.match, ids)):
            return False
        if max(map(len, ids)) > self._id_chars_max or max(map(len, words)) > self._label_chars_max:
            return False
        messages = [pack((word, value, ())) for word, value in zip(words, values, strict=True)]
        if max(map(len, messages)) > self._small_bytes or self.adds.shared.past_refusal is not None:
            return False
        contents, before, after = [], self._before, self._after
        for message, word in zip(messages, words, strict=True):
            digest = _EMPTY_DIGEST.copy()
            digest.update(b"".join((message, before, word, after)))
            contents.append(digest.digest())
        adds = self.adds
        adds.ids += ids
        adds.messages += messages
        adds.contents += contents
        adds.key_hashes += map(crc32, words)
        adds.labels += [word.join(self._labels) for word in words]
        return True


def plain_of(request: Request, now: int) -> PlainRequest | None:
    """A request as a plain one; None if it is not, or if its time is not written as most clients write it."""
    at = request.at
    due = now if at is None else at if type(at) is int else iso8601.usual_instant(at) if type(at) is str else None
    if due is None or request.priority is not Priority.NORMAL or _has_more(request):
        return None
    return request.id, request.topic, at, due, request.key, request.value, request.headers, False


@cache
def _later_fields(request_type: type[Request]) -> tuple[str, ...]:
    """The fields added after version 0.1, except `past`: it says whether a request is accepted, not what it is."""
    return tuple(name for name in request_type.__struct_fields__ if name not in {*_DIGEST_FIELDS, "past"})


def check_new_id(schedule_id: str) -> None:
    """Refuse an id that has the form of the ids which Tidings generates."""
    if MADE_ID.match(schedule_id):
        raise Invalid("id", "has the form of the ids that Tidings generates: choose another, or leave it out")


def _check_when(request: Request, now: int, limits: Limits) -> None:
    if request.every is None and request.timing is None:
        read_at(request, now)
    else:
        read_when(request, now, limits)


def _lateness(request: Request) -> Lateness:
    grace_us = _duration(request.late_grace, "late_grace")
    return Lateness(
        request.late or "fire_latest",
        GRACE_DEFAULT_US if grace_us is None else grace_us,
        _duration(request.late_max, "late_max"),
        _duration(request.expires_after, "expires_after"),
    )


def _duration(text: str | None, field: str) -> int | None:
    return None if text is None else iso8601.parse_exact_duration(text, field)
