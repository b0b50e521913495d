"""Headers of a wire in a record.

Names are matched case-insensitively, values are UTF-8. A null or empty header counts as absent.
"""

from collections.abc import Mapping, Set
from hashlib import blake2b

from tidings.domain.errors import Invalid
from tidings.domain.message import Headers
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.request import Limits
from tidings.wires.record import Record, Verb
from tidings.wires.refusal import refused_words

Found = dict[str, bytes | None]

_DERIVED_BYTES_MAX = Limits().id_bytes_max
_DIGEST_BYTES = 16


class Verbatim(Invalid):
    """A refusal whose detail is the whole reason."""

    def __str__(self) -> str:
        return self.detail


def last_of(headers: Headers, names: Set[str]) -> Found:
    """The headers with these names, given in lower case; the last one of repeated headers."""
    return {lower: value for name, value in headers if (lower := name.lower()) in names}


def others(headers: Headers, names: Set[str]) -> Headers:
    """All headers except those with these names, in order."""
    return tuple([header for header in headers if header[0].lower() not in names])


def text_of(found: Found, name: str) -> str | None:
    """The text of a header, None if it is absent."""
    value = found.get(name)
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(name, "is not UTF-8: send it as text") from None


def required(found: Found, name: str) -> str:
    """The text of a required header."""
    text = text_of(found, name)
    if text is None:
        raise Verbatim(name, missing(name))
    return text


def missing(name: str, action: str | None = None) -> str:
    """The reason for a missing header, in Kaspr's wording."""
    return f"Missing required header `{name}`" + (f" for {action} action" if action else "")


def verb_of(found: Found, name: str, verbs: Mapping[str, Verb]) -> Verb:
    """The verb in a header; `add` if it is absent."""
    word = text_of(found, name)
    if word is None:
        return "add"
    verb = verbs.get(word.upper())
    if verb is None:
        raise refused_words(name, word, verbs)
    return verb


def id_of(found: Found, name: str, verb: Verb) -> str | None:
    """The schedule id in a header; it may be absent only for `add`."""
    schedule_id = text_of(found, name)
    if schedule_id is None and verb != "add":
        raise Verbatim(name, missing(name, verb.upper()))
    # Other verbs may name any id that a store can hold; new schedules are checked against the limits of the node.
    if schedule_id is not None and len(schedule_id.encode()) > ID_BYTES_MOST:
        raise Invalid(name, f"is longer than {ID_BYTES_MOST} bytes of UTF-8")
    return schedule_id


def derived_id(record: Record, bytes_max: int = _DERIVED_BYTES_MAX) -> str:
    """An id from the record's topic, partition and offset, so that the same record is the same schedule.

    Offsets are used again when a topic is deleted and created again; `life` makes the ids differ.
    """
    place = f"/{record.partition}/{record.offset}"
    if record.life:
        place += f"@{record.life}"
    if len(record.topic) + len(place) <= bytes_max:
        return record.topic + place
    return blake2b(record.topic.encode(), digest_size=_DIGEST_BYTES).hexdigest() + place
