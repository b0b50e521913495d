"""The fields of a `when`, each for itself: so that whoever mends one hears of the others at once."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tidings.domain.errors import Invalid
from tidings.domain.names import check_name
from tidings.domain.recurrence.blocks import parse_block, parse_moments
from tidings.domain.recurrence.cron import parse_cron
from tidings.domain.recurrence.parts import GAPS, ON_EXCLUDED, OVERLAPS
from tidings.domain.recurrence.reading import check_count
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.written import parse_moment
from tidings.domain.recurrence.zones import check_zone
from tidings.domain.request import Timing

Word = TypeVar("Word", bound=str)


def wrong_fields(timing: Timing, known: str) -> tuple[Invalid, ...]:
    """What is wrong in itself, but for the field that is known to be."""
    found = []
    for name, check in _CHECKS.items():
        value = getattr(timing, name)
        if name != known and value is not None and value != ():
            try:
                check(value)
            except Invalid as invalid:
                found.append(invalid)
    return tuple(found)


def word(name: str, text: str | None, words: Mapping[str, Word], default: Word) -> Word:
    """One of the words that a field knows."""
    if text is None:
        return default
    if text not in words:
        raise Invalid(name, f"{text[:48]!r} is not known: use {' or '.join(words)}")
    return words[text]


_CHECKS: dict[str, Callable[..., object]] = {
    "rrule": lambda text: parse_rrule(parse_block(text).rrule),
    "cron": parse_cron,
    "zone": check_zone,
    "start": lambda text: parse_moment(text, "start"),
    "until": lambda text: parse_moment(text, "until"),
    "count": check_count,
    "rdates": lambda texts: parse_moments(texts, "rdates"),
    "exdates": lambda texts: parse_moments(texts, "exdates"),
    "gap": lambda text: word("gap", text, GAPS, "forward"),
    "overlap": lambda text: word("overlap", text, OVERLAPS, "first"),
    "calendar": lambda name: check_name(name, "calendar"),
    "on_excluded": lambda text: word("on_excluded", text, ON_EXCLUDED, "skip"),
}
