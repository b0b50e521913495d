"""Records, topics, and the consumer groups that share a topic's partitions."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from tidings.domain.limits import Limits
from tidings.domain.names import Bus
from tidings.shapes.fields import AlwaysTrue, Answer, Instant, Sent, about
from tidings.shapes.schedule import HeaderValue, MessageShown, TopicName

PAGE_RECORDS_DEFAULT = 100
WAIT_S_MAX = 60

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PageRows = Annotated[int, Meta(ge=1, le=Limits().page_rows_max)]


class Record(MessageShown, frozen=True, kw_only=True):
    """One released occurrence. On Kafka it may be a record of another program."""

    topic: Annotated[TopicName, about("Its topic.")]
    partition: Annotated[int, about("Its partition.")]
    offset: Annotated[int, about("Its offset in the partition.")]
    headers: Annotated[
        list[tuple[str, HeaderValue]], about("Headers of the record: pairs of name and value, in order.")
    ]
    id: Annotated[str | UnsetType, about("Id of the schedule.")] = UNSET
    occurrence: Annotated[
        str | UnsetType, about("Id of the occurrence: schedule/generation/number.", "order-42-reminder/1/1")
    ] = UNSET
    due_at: Annotated[Instant | UnsetType, about("When it was due.")] = UNSET
    released_at: Annotated[Instant | UnsetType, about("When it was released.")] = UNSET
    final: Annotated[AlwaysTrue | UnsetType, about("The last occurrence of a recurring schedule.")] = UNSET
    bus: Annotated[Literal["kafka"] | UnsetType, about("`kafka` for a record on Kafka.")] = UNSET


class RecordPage(Answer, frozen=True, kw_only=True):
    """A page of records."""

    records: Annotated[list[Record], about("The records, in order of release.")]
    cursor: Annotated[str, about("Cursor behind them.")]
    bus: Annotated[Bus, about("Bus that they are on.")]


class Partition(Answer, frozen=True, kw_only=True):
    """One partition of a topic; of a topic on Kafka only its number."""

    partition: Annotated[int, about("Its number.")]
    first: Annotated[int | UnsetType, about("The oldest offset that is kept.")] = UNSET
    next: Annotated[int | UnsetType, about("The offset that the next record gets.")] = UNSET


class Topic(Answer, frozen=True, kw_only=True):
    """A topic and its size; of a topic on Kafka only its partitions."""

    name: Annotated[TopicName, about("Name of the topic.")]
    partitions: Annotated[list[Partition], about("Its partitions.")]
    records: Annotated[int | UnsetType, about("How many records are kept.")] = UNSET
    bytes: Annotated[int | UnsetType, about("How many bytes they take.")] = UNSET


class Topics(Answer, frozen=True, kw_only=True):
    """All topics of a bus."""

    topics: Annotated[list[Topic], about("The topics, by name.")]
    bus: Annotated[Bus, about("Bus that they are on.")]


# --- consumer groups ---


class Join(Sent, frozen=True, kw_only=True):
    """A request to join a consumer group."""

    member: Annotated[str | None, about("Name of the member.", "worker-1", absent="one is generated")] = None


class Member(Sent, frozen=True, kw_only=True):
    """The member that calls."""

    member: Annotated[str, about("Name of the member.", "worker-1")]
    generation: Annotated[Number, about("The generation of the group that the member knows.", 1)]


class Fetch(Member, frozen=True, kw_only=True):
    """A request for the next records of a member's partitions."""

    limit: Annotated[PageRows, about("At most this many records.")] = PAGE_RECORDS_DEFAULT
    wait: Annotated[
        str | Annotated[int, Meta(ge=0, le=WAIT_S_MAX)] | None,
        about(
            f"How long to wait for the first record: seconds or a duration, at most {WAIT_S_MAX} s.",
            "30s",
            absent="do not wait",
            send='seconds, or a duration as text, for example "30s"',
        ),
    ] = None


class Commit(Member, frozen=True, kw_only=True):
    """How far the group has processed its partitions."""

    offsets: Annotated[
        dict[Number, Number],
        about(
            "By partition, the next offset to process.",
            {"2": 41},
            send='an object of whole numbers, for example {"2": 41}',
        ),
    ]


class Membership(Answer, frozen=True, kw_only=True):
    """A member of a group, and its partitions."""

    member: Annotated[str, about("Name of the member.")]
    generation: Annotated[int, about("Generation of the group.", minimum=0)]
    partitions: Annotated[list[int], about("The partitions that are assigned to it.")]
    session_ms: Annotated[int, about("It must call again within this time, in milliseconds.")]


class Fetched(Answer, frozen=True, kw_only=True):
    """The next records of a member's partitions."""

    records: Annotated[list[Record], about("The records, in order of release.")]


class Committed(Answer, frozen=True, kw_only=True):
    """What was committed."""

    member: Annotated[str, about("Name of the member.")]
    committed: Annotated[dict[str, int], about("By partition, the next offset to process.")]


class Left(Answer, frozen=True, kw_only=True):
    """The member that left."""

    member: Annotated[str, about("Name of the member.")]
    left: Annotated[AlwaysTrue, about("Its partitions move to other members at once.")]
