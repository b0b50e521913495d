"""Schedules: when, the lateness policy, the message, and what is answered about them."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tidings.domain.limits import PREVIEW_MAX, Limits
from tidings.domain.names import Bus, Mark, OutcomeWord, Past, Policy, PriorityName, State
from tidings.domain.recurrence.rule import GAPS, ON_EXCLUDED, OVERLAPS
from tidings.shapes.fields import INSTANT, Answer, Base64, Cursor, Duration, Instant, Sent, about

_LIMITS = Limits()

Width = Literal["second", "minute", "hour", "day"]

TopicName = Annotated[
    str,
    Meta(
        examples=["greetings"], extra_json_schema={"maxLength": _LIMITS.topic_chars_max, "pattern": "^[A-Za-z0-9._-]+$"}
    ),
]
Labels = Annotated[dict[str, str], Meta(examples=[{"campaign": "autumn"}])]
Count = Annotated[int, Meta(extra_json_schema={"minimum": 1})]


class Binary(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bytes that are not text, as the value of a header."""

    base64: Annotated[Base64, about("The bytes in standard base64.")]


HeaderValue = str | Binary | None
HeaderPairs = list[tuple[str, HeaderValue]] | dict[str, HeaderValue]

_HEADERS = '[["name", "value"], ...] or {"name": "value"}; a value is text, null or {"base64": "..."}'


# --- requests ---


class When(Sent, frozen=True, kw_only=True, gc=False):
    """When something is due."""

    at: Annotated[
        str | None,
        about(
            "When it is due: an instant with an offset, a duration from now, or a local time together with `zone`. "
            "A past time is due at once, unless `past` refuses it or its lateness policy says it is too late.",
            "2026-11-20T09:00:00Z",
            "+5s",
            absent="now",
        ),
    ] = None
    scheduled_at: Annotated[
        str | None, about("Another name for `at`: give only one of them.", "2026-11-20T09:00:00Z", "+5s")
    ] = None
    every: Annotated[
        str | None,
        about(
            "Repeat at a fixed interval, instead of `at`: a period or an ISO 8601 repeating interval.",
            "PT10M",
            "R5/2026-11-20T09:00:00Z/PT1H",
        ),
    ] = None
    rrule: Annotated[
        str | None,
        about(
            "Repeat by a recurrence rule (RFC 5545), instead of `at`. Lines with DTSTART, RRULE, RDATE and EXDATE are "
            "accepted too.",
            "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0",
        ),
    ] = None
    cron: Annotated[
        str | None,
        about(
            "Repeat by a cron expression, instead of `at`: five fields, or six with seconds first.",
            "*/5 9-17 * * MON-FRI",
        ),
    ] = None
    zone: Annotated[
        str | None,
        about(
            "The IANA time zone in which local times, rules and cron expressions are read.",
            "Europe/Berlin",
            absent="`UTC`",
        ),
    ] = None
    start: Annotated[
        str | None,
        about(
            "Start of a rule, a cron expression or a period. A date is its midnight.",
            "2026-11-20T09:00:00",
            absent="now; for rules with its seconds at zero",
        ),
    ] = None
    until: Annotated[
        str | None,
        about(
            "Last possible moment, inclusive. A date includes its whole day.", "2026-12-31T17:00:00", absent="no end"
        ),
    ] = None
    rdates: Annotated[tuple[str, ...] | None, about("Additional moments.", ["2026-12-25T09:00:00"], absent="none")] = (
        None
    )
    exdates: Annotated[
        tuple[str, ...] | None, about("Moments and dates to leave out.", ["2026-12-25"], absent="none")
    ] = None
    gap: Annotated[
        str | None,
        about(
            "What happens to a local time that the change to daylight saving time skips: `forward` moves it after the "
            "gap, `skip` drops it. A single time that is dropped counts as missed.",
            absent="`forward`",
            enum=list(GAPS),
        ),
    ] = None
    overlap: Annotated[
        str | None,
        about(
            "Which one is meant when a local time occurs twice at the end of daylight saving time.",
            absent="`first`",
            enum=list(OVERLAPS),
        ),
    ] = None
    calendar: Annotated[str | None, about("Name of a calendar whose days are excluded.", "holidays", absent="none")] = (
        None
    )
    on_excluded: Annotated[
        str | None,
        about(
            "What happens to an occurrence on an excluded day: `skip` drops it, `next_day` moves it.",
            absent="`skip`",
            enum=list(ON_EXCLUDED),
        ),
    ] = None


class Timed(When, frozen=True, kw_only=True, gc=False):
    """When something is due, and the lateness policy. Schedules and notifications have these fields in common."""

    count: Annotated[
        Count | None, about("End after this many occurrences, unless the rule itself says so.", 5, absent="no end")
    ] = None
    late: Annotated[
        Policy | None,
        about(
            "What happens to overdue occurrences: `fire_latest` releases only the latest, `fire_all` all of them (at "
            "most the latest 10,000), `skip` none.",
            absent="`fire_latest`",
        ),
    ] = None
    late_grace: Annotated[
        Duration | None, about("How late `skip` still releases. Other policies ignore it.", "PT60S", absent="`PT60S`")
    ] = None
    late_max: Annotated[
        Duration | None, about("How late an occurrence may be released under any policy.", absent="unlimited")
    ] = None
    expires_after: Annotated[
        Duration | None,
        about("How long after its due time it is still wanted. Later it is missed as `expired`.", absent="unlimited"),
    ] = None
    jitter: Annotated[
        Duration | None,
        about(
            "Window over which due times are spread, by a hash of the id (without one: of the content). At most a day.",
            absent="none, or `dispatch.low_priority_jitter` for low-priority messages scheduled ahead",
        ),
    ] = None
    past: Annotated[
        Past | None,
        about(
            "What happens if `at` was more than a minute ago: `send` sends it now, `refuse` refuses it.",
            absent="`dispatch.past`, which is `send` unless configured",
        ),
    ] = None


class NewSchedule(Timed, frozen=True, kw_only=True, gc=False):
    """A schedule as it is sent. Unknown fields are refused by name."""

    topic: Annotated[
        TopicName | None, about("Topic that the record is released to: letters, digits, `.`, `_` and `-`.")
    ] = None
    bus: Annotated[
        Bus | None,
        about("Bus that the topic is on.", absent="`kafka` if the server is connected to one, else `log`"),
    ] = None
    id: Annotated[
        str | None,
        about(
            f"Your id for it: 1 to {_LIMITS.id_bytes_max} bytes of UTF-8 without control characters. Ids of the form "
            "that Tidings generates (`tid_` and 33 digits) are refused.",
            absent="one is generated",
            send="text, or leave it out and one is generated",
        ),
    ] = None
    key: Annotated[
        str | None,
        about(
            "Key of the record, as text. Records with equal keys go to the same partition.",
            absent="null; the id selects the partition",
            send="text; bytes that are not text go into 'key_base64'",
        ),
    ] = None
    key_base64: Annotated[Base64 | None, about("Key of the record, if it is not text.")] = None
    value: Annotated[
        msgspec.Raw | UnsetType,
        about(
            "Value of the record. Text is stored as UTF-8, other JSON in its compact encoding, null is no value.",
            {"hello": "world"},
            absent="null",
        ),
    ] = UNSET
    value_base64: Annotated[Base64 | None, about("Value of the record, if it is neither text nor JSON.")] = None
    headers: Annotated[
        HeaderPairs | None,
        about(
            "Headers of the record: pairs of name and value, whose order, repeats and nulls are kept, or an object. "
            'A value is text, null or `{"base64": "..."}`.',
            [["trace", "abc"], ["empty", None]],
            absent="none",
            send=_HEADERS,
        ),
    ] = None
    priority: Annotated[
        PriorityName | None,
        about("Priority when more is due than one batch holds.", absent="`normal`"),
    ] = None
    labels: Annotated[
        Labels | None,
        about(
            f"Names and values to search by: at most {_LIMITS.labels_max}, 4 KiB in all.",
            absent="none",
            maxProperties=_LIMITS.labels_max,
        ),
    ] = None


class Preview(When, frozen=True, kw_only=True):
    """When something would be due: the same fields as in a schedule."""

    after: Annotated[
        str | None,
        about(
            "Only moments after this one, which is not shown itself: an instant, a local time, or a duration from now.",
            "+1d",
            absent="from now on",
        ),
    ] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=PREVIEW_MAX)],
        about("How many moments to show. The end of a rule is written in it as `COUNT`, or given as `until`."),
    ] = 10


# --- responses ---

_DUE_AT = "When the next occurrence that can be released is due."
_NOTE = "A remark on its times, such as that they have passed, or that its local time does not exist that day."


class Error(Answer, frozen=True, kw_only=True):
    """One fault of a request."""

    field: Annotated[str, about("The field, parameter or header at fault.")]
    detail: Annotated[str, about("What is wrong, and what to change.")]


class Outcome(Answer, frozen=True, kw_only=True, gc=False):
    """What a change did."""

    id: Annotated[str, about("Id of the schedule.")]
    outcome: Annotated[OutcomeWord, about("What happened.")]
    due_at: Annotated[Instant | UnsetType, about(_DUE_AT)] = UNSET
    state: Annotated[State | UnsetType, about("Its state, if it does not follow from the outcome.")] = UNSET
    reason: Annotated[str | UnsetType, about("Why.")] = UNSET
    in_flight: Annotated[
        int | UnsetType,
        about("Number of the latest occurrence on its way to Kafka, which will appear. The change applies after it."),
    ] = UNSET
    remembered_since: Annotated[Instant | UnsetType, about("Ids that finished before this are forgotten.")] = UNSET
    note: Annotated[str | UnsetType, about(_NOTE)] = UNSET


class Line(Outcome, frozen=True, kw_only=True, gc=False):
    """The outcome of one line or item. A refused one has `errors`.

    If the rest of the body could not be accepted, the last line is a problem.
    """

    id: Annotated[str | UnsetType, about("Id of the schedule, if it is known.")] = UNSET  # type: ignore[assignment]
    line: Annotated[int, about("Number of the line (empty ones count) or item, from 1.", minimum=1)]
    errors: Annotated[list[Error] | UnsetType, about("What is wrong, by field.")] = UNSET
    type: Annotated[str | UnsetType, about("The kind of problem.")] = UNSET
    title: Annotated[str | UnsetType, about("Title of the problem.")] = UNSET
    status: Annotated[int | UnsetType, about("HTTP status of the problem.")] = UNSET
    detail: Annotated[str | UnsetType, about("What is wrong, and what to change.")] = UNSET


class Problem(Outcome, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """An error (RFC 9457). If a change was refused it also has the fields of the outcome."""

    id: Annotated[str | UnsetType, about("Id of the schedule.")] = UNSET  # type: ignore[assignment]
    outcome: Annotated[  # `conflict`: the id of a new notification belongs to something else
        OutcomeWord | Literal["conflict"] | UnsetType, about("What happened.")
    ] = UNSET  # type: ignore[assignment]
    state: Annotated[str | UnsetType, about("Its state, if it does not follow.")] = UNSET  # type: ignore[assignment]
    type: Annotated[str, about("The kind of problem, as a URN.", "urn:tidings:problem:invalid")]
    title: Annotated[str, about("The kind of problem, in words.")]
    status: Annotated[int, about("The HTTP status.", 400)]
    detail: Annotated[str, about("What is wrong, and what to change.")]
    errors: Annotated[list[Error] | UnsetType, about("What is wrong, by field.")] = UNSET


KeyShown = Annotated[str | UnsetType | None, about("Key of the record, as text; null if it has none.")]
KeyBytesShown = Annotated[Base64 | UnsetType, about("Key of the record, if it is not text.")]
ValueShown = Annotated[str | UnsetType | None, about("Value of the record, as text; null if it has none.")]
ValueBytesShown = Annotated[Base64 | UnsetType, about("Value of the record, if it is not text.")]
HeadersShown = Annotated[
    list[tuple[str, HeaderValue]] | UnsetType,
    about("Headers of the record: pairs of name and value, in order.", [["trace", "abc"], ["empty", None]]),
]


class MessageShown(Answer, frozen=True, kw_only=True):
    """Key, value and headers of a record."""

    key: KeyShown = UNSET
    key_base64: KeyBytesShown = UNSET
    value: ValueShown = UNSET
    value_base64: ValueBytesShown = UNSET
    headers: HeadersShown = UNSET


class TimeShown(Answer, frozen=True, kw_only=True):
    """When something is due, in the fields of a request, and its lateness policy."""

    at: Annotated[str | UnsetType, about("Its single moment; a local time if it has a time zone.", INSTANT)] = UNSET
    every: Annotated[str | UnsetType, about("Its repeating interval.", "R/2026-11-20T09:00:00Z/P1D")] = UNSET
    rrule: Annotated[str | UnsetType, about("Its recurrence rule. An `until` or `count` is part of it.")] = UNSET
    cron: Annotated[str | UnsetType, about("Its cron expression.")] = UNSET
    zone: Annotated[str | UnsetType, about("Its time zone.")] = UNSET
    start: Annotated[str | UnsetType, about("Its start.")] = UNSET
    until: Annotated[str | UnsetType, about("Its last possible moment.")] = UNSET
    count: Annotated[Count | UnsetType, about("Number of occurrences after which it ends.")] = UNSET
    gap: Annotated[str | UnsetType, about("Treatment of local times that do not exist.", enum=list(GAPS))] = UNSET
    overlap: Annotated[str | UnsetType, about("Treatment of local times that occur twice.", enum=list(OVERLAPS))] = (
        UNSET
    )
    rdates: Annotated[tuple[str, ...] | UnsetType, about("Additional moments.")] = UNSET
    exdates: Annotated[tuple[str, ...] | UnsetType, about("Moments and dates that are left out.")] = UNSET
    calendar: Annotated[str | UnsetType, about("Calendar whose days are excluded.")] = UNSET
    on_excluded: Annotated[
        str | UnsetType, about("Treatment of occurrences on excluded days.", enum=list(ON_EXCLUDED))
    ] = UNSET
    anchor_at: Annotated[
        Instant | UnsetType, about("Moment that periods are counted from, if `every` does not contain it.")
    ] = UNSET
    late: Annotated[Policy | UnsetType, about("What happens to overdue occurrences.")] = UNSET
    late_grace: Annotated[Duration | UnsetType, about("How late `skip` still releases.")] = UNSET
    late_max: Annotated[Duration | UnsetType, about("How late an occurrence may be released.")] = UNSET
    jitter: Annotated[
        Duration | UnsetType,
        about("Window over which the due times of a recurring one are spread; `due_at` includes its own delay."),
    ] = UNSET


class Schedule(TimeShown, frozen=True, kw_only=True):
    """A schedule and its state. Fields that do not apply are left out.

    The fields that say when give the same moments if they are sent again. Of a finished schedule the lateness policy is
    gone, and the message too unless the log still has it.
    """

    id: Annotated[str, about("Its id.")]
    topic: Annotated[TopicName, about("Topic that it is released to.")]
    bus: Annotated[Bus, about("Bus that the topic is on.")]
    state: Annotated[State, about("Its state.")]
    due_at: Annotated[
        Instant,
        about(
            "When the pending occurrence is due, or the last one was. If that is too late to be released, when the "
            "next one is due."
        ),
    ]
    due_at_local: Annotated[
        str | UnsetType, about("`due_at` in its time zone, with the offset from UTC.", "2026-11-20T10:00:00+01:00")
    ] = UNSET
    tzdata: Annotated[
        str | UnsetType, about("Version of the time zone database by which that was computed.", "2026b")
    ] = UNSET
    occurrence: Annotated[int, about("Number of the occurrence that `due_at` belongs to, from 1.")]
    generation: Annotated[int, about("How many times the id has been used.")]
    accepted_at: Annotated[Instant, about("When it was accepted.")]
    priority: Annotated[PriorityName, about("Its priority.")]
    expires_after: Annotated[Duration | UnsetType, about("How long after its due time it is still wanted.")] = UNSET
    labels: Annotated[Labels | UnsetType, about("Names and values to search by.")] = UNSET
    finished_at: Annotated[Instant | UnsetType, about("When it finished.")] = UNSET
    reason: Annotated[
        str | UnsetType,
        about("Why it was missed; why one in flight is held back; the rule or expression of one that has ended."),
    ] = UNSET
    note: Annotated[
        str | UnsetType,
        about("A remark: its local time does not exist and will be missed, or its calendar was deleted."),
    ] = UNSET
    partition: Annotated[int | UnsetType, about("Partition of the record that was released.")] = UNSET
    offset: Annotated[int | UnsetType, about("Offset of the record that was released.")] = UNSET
    key: KeyShown = UNSET
    key_base64: KeyBytesShown = UNSET
    value: ValueShown = UNSET
    value_base64: ValueBytesShown = UNSET
    headers: HeadersShown = UNSET


class Event(Answer, frozen=True, kw_only=True):
    """One entry of a history."""

    at: Annotated[Instant, about("When it happened.")]
    event: Annotated[
        str,
        about(
            "What happened: `accepted`, `replaced`, `paused`, `resumed`, `fired`, `moved`, `released`, `missed`, "
            "`cancelled` or `ended`.",
            "released",
        ),
    ]
    occurrence: Annotated[int | UnsetType, about("Number of the occurrence; the first of several.")] = UNSET
    due_at: Annotated[Instant | UnsetType, about("When it was due; of `accepted` and `moved` when it is due.")] = UNSET
    late_ms: Annotated[float | UnsetType, about("How late it was released, in milliseconds.")] = UNSET
    reason: Annotated[
        str | UnsetType,
        about(
            "Why it was missed; what moved it, a calendar or a version of tzdata, and from when; the rule or "
            "expression that ended."
        ),
    ] = UNSET
    count: Annotated[int | UnsetType, about("How many occurrences were missed.")] = UNSET


class Explanation(Schedule, frozen=True, kw_only=True):
    """A schedule and its history."""

    history: Annotated[list[Event], about("What happened to it, oldest first.")]


class SchedulePage(Answer, frozen=True, kw_only=True):
    """A page of schedules in order of due time, without their values and headers."""

    schedules: Annotated[list[Schedule], about("The schedules.")]
    cursor: Cursor


class Moment(Answer, frozen=True, kw_only=True):
    """One moment of a preview. One that is skipped has neither a number nor an instant."""

    occurrence: Annotated[int | UnsetType, about("Its number.")] = UNSET
    due_at: Annotated[Instant | UnsetType, about("The instant.")] = UNSET
    due_at_local: Annotated[
        str | UnsetType, about("The same in the time zone, with its offset; of a skipped one the missing local time.")
    ] = UNSET
    mark: Annotated[
        Mark | UnsetType,
        about(
            "The effect of a clock change: `moved` or `skipped` in a gap, the `first` or `second` of two equal times."
        ),
    ] = UNSET


class Moments(Answer, frozen=True, kw_only=True):
    """The next moments."""

    moments: Annotated[list[Moment], about("The moments, in order.")]
    more: Annotated[bool, about("Whether more of them follow.")]
    passed: Annotated[int | UnsetType, about("How many occurrences are already past, if any.")] = UNSET
    note: Annotated[
        str | UnsetType, about("What each lateness policy would do with those, and remarks on local times.")
    ] = UNSET


class Step(Answer, frozen=True, kw_only=True):
    """One step of a forecast."""

    at: Annotated[Instant, about("Start of the step.")]
    pending: Annotated[int, about("How many schedules are due in it.")]


class Forecast(Answer, frozen=True, kw_only=True):
    """How many schedules are pending, by time."""

    by: Annotated[Width, about("The width of a step.")]
    start: Annotated[Instant, about("Start of the first step.")] = msgspec.field(name="from")
    to: Annotated[Instant, about("End, exclusive.")]
    steps: Annotated[list[Step], about("The steps; empty ones are left out.")]
    complete: Annotated[bool, about("False if there was too much to count.")]
