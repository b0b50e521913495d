"""The shapes of records, topics, groups, keys and of looking ahead."""

from typing import get_args

from tidings.domain.destination import BUSES
from tidings.domain.recurrence.preview import Mark
from tidings.domain.request import Limits
from tidings.edges.http.openapi.schedules import AT, EVERY, MESSAGE_SHOWN, RULE, TOPIC, nullable
from tidings.edges.http.openapi.shapes import Schema, array, instant, number, or_null, ref, shape, text
from tidings.edges.http.planning import WIDTHS_US

_LIMITS = Limits()

_BELONGING = {"member": text("The member."), "generation": number("As of which generation.", minimum=0)}
_WAIT: Schema = {
    "type": ["string", "integer", "null"],
    "description": "How long to wait for the first: seconds, or `30s`; at most 60 s.",
}
_LIMIT = number("At most so many.", minimum=1, maximum=_LIMITS.page_rows_max, default=100)
_RECORDS = array(ref("Record"), "In the order of release.")

_BUS = text("Where they lie.", enum=list(BUSES))

SCHEMAS: dict[str, Schema] = {
    "Record": shape(
        "One released occurrence; on Kafka a record of anybody, told apart by its headers.",
        "topic partition offset headers",
        bus=text("`kafka` for a record on Kafka.", enum=["kafka"]),
        topic=TOPIC,
        partition=number("Its partition."),
        offset=number("Its place there."),
        **MESSAGE_SHOWN,
        id=text("The schedule."),
        occurrence=text("The occurrence's own id, the same however often it is read: schedule/generation/number."),
        due_at=instant("When it was due."),
        released_at=instant("When it was released."),
        final={"const": True, "description": "The last occurrence of a recurring schedule."},
    ),
    "RecordPage": shape(
        "Some records.", "records cursor bus", records=_RECORDS, cursor=text("Where to go on."), bus=_BUS
    ),
    "Topics": shape("Every topic.", "topics bus", topics=array(ref("Topic")), bus=_BUS),
    "Topic": shape(
        "A topic's size; of one on Kafka its partitions alone.",
        "name partitions",
        name=TOPIC,
        records=number("How many are kept."),
        bytes=number("How much they take."),
        partitions=array(
            shape(
                "One partition.",
                "partition",
                partition=number("Its number."),
                first=number("The oldest offset kept."),
                next=number("The offset that the next record gets."),
            )
        ),
    ),
    "Join": shape("Who joins.", "", member=or_null(text("A name of one's own, or one is made."))),
    "Member": shape("Which member calls.", "member generation", **_BELONGING),
    "Fetch": shape("What to fetch.", "member generation", **_BELONGING, limit=_LIMIT, wait=_WAIT),
    "Commit": shape(
        "What is done.",
        "member generation offsets",
        **_BELONGING,
        offsets={
            "type": "object",
            "description": "By partition, the next offset that is not done.",
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
    ),
    "Membership": shape(
        "A member's place.",
        "member generation partitions session_ms",
        **_BELONGING,
        partitions=array({"type": "integer"}, "Those that are its own."),
        session_ms=number("It must call again within this time."),
    ),
    "Fetched": shape("Some records.", "records", records=_RECORDS),
    "Committed": shape(
        "What was kept.",
        "member committed",
        member=text("The member."),
        committed={"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    "Left": shape("Who left.", "member left", member=text("The member."), left={"const": True}),
    "Preview": shape(
        "A `when` to look at.",
        "",
        at=or_null(AT),
        scheduled_at=or_null(text("Another name of `at`.")),
        every=or_null(EVERY),
        **nullable(RULE),
        after=or_null(text("Only what follows this instant, or lies so long ahead (`+1d`); now if it is left out.")),
        count=number("How many to show; not a rule's own COUNT.", minimum=1, maximum=1000, default=10),
    ),
    "Moments": shape(
        "The next moments.",
        "moments more",
        passed=number("How many occurrences of an interval lie before now, if any."),
        note=text("What would become of these, under each policy."),
        moments=array(
            shape(
                "One moment.",
                "",
                occurrence=number("Its number; one that a gap swallows has none."),
                due_at=instant("When."),
                due_at_local=text("What clocks show then, with their offset; of a skipped one what they never show."),
                mark=text(
                    "What a change of clocks did: jumped over it (`moved`, `skipped`), or showed it twice.",
                    enum=list(get_args(Mark)),
                ),
            )
        ),
        more={"type": "boolean", "description": "Whether there are further ones."},
    ),
    "Forecast": shape(
        "What is pending, by time.",
        "by from to steps complete",
        by=text("The width of a step.", enum=list(WIDTHS_US)),
        to=instant("To (exclusive)."),
        steps=array(
            shape("One step.", "at pending", at=instant("Its start."), pending=number("How many are due in it.")),
            "Empty ones are left out.",
        ),
        complete={"type": "boolean", "description": "False if there was too much to count."},
        **{"from": instant("From.")},
    ),
    "NewKey": shape(
        "A key to be made.",
        "name",
        name=text("Its name.", examples=["laptop"]),
        tenant=text("Whom it acts for.", default="default"),
        admin={"type": "boolean", "description": "Whether it may manage keys.", "default": False},
    ),
    "Key": shape(
        "A key; the key itself is shown only when it is made.",
        "name tenant admin created_at",
        name=text("Its name."),
        tenant=text("Whom it acts for."),
        admin={"type": "boolean"},
        created_at=instant("When it was made."),
        key=text("The key."),
    ),
    "Keys": shape("Every key.", "keys", keys=array(ref("Key"))),
    "Revoked": shape("What was revoked.", "name revoked", name=text("Its name."), revoked={"const": True}),
    "Status": shape(
        "How it is.",
        "status",
        status=text("In a word."),
        version=text("The version."),
        detail=text("In words."),
        notices={
            "type": "array",
            "items": {"type": "string"},
            "description": "What somebody must put right, such as a provider that refuses us.",
        },
    ),
}
