"""Parsing of iCalendar lines around a rule: DTSTART, RRULE, RDATE and EXDATE."""

import re
from functools import lru_cache

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.recurrence.parts import Moment
from tidings.domain.recurrence.rrule import parse_rrule
from tidings.domain.recurrence.written import parse_moment, quoted

BLOCK_CHARS_MAX = 32_000
LIST_MAX = 500

_FOLDED = re.compile(r"\r?\n[ \t]")
_LINE = re.compile(r"(DTSTART|RRULE|RDATE|EXDATE)((?:;[A-Z-]+=[^:;]+)*):(.*)", re.IGNORECASE)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an RRULE text of one or more lines; `zone` is their common TZID."""

    rrule: str
    start: Moment | None = None
    zone: str | None = None
    added: tuple[Moment, ...] = ()
    excepted: tuple[Moment, ...] = ()


@lru_cache(maxsize=4_096)  # producers repeat the same few rules
def parse_block(text: str, field: str = "rrule") -> Block:
    """Parse a bare rule (`FREQ=...`), or lines of DTSTART, RRULE, RDATE and EXDATE."""
    if len(text) > BLOCK_CHARS_MAX:
        raise Invalid(field, f"has {len(text)} characters: at most {BLOCK_CHARS_MAX} are allowed")
    lines = [line for line in _FOLDED.sub("", text.strip()).splitlines() if line.strip()]
    if len(lines) <= 1 and not _LINE.match(text.strip()):
        parse_rrule(text, field)  # before it is normalized, so that an error quotes the original
        return Block(rrule=text.strip().upper().removesuffix(";"))
    found: dict[str, list[str]] = {"DTSTART": [], "RRULE": [], "RDATE": [], "EXDATE": []}
    zones: set[str] = set()
    for line in lines:
        name, zone, value = _line(line.strip(), field)
        found[name].append(value)
        zones |= {zone} if zone else set()
    if len(found["RRULE"]) != 1 or len(found["DTSTART"]) > 1:
        raise Invalid(field, "needs one RRULE line and at most one DTSTART line")
    if len(zones) > 1:
        raise Invalid(field, f"names several time zones ({', '.join(sorted(zones))}): use one TZID for all lines")
    return Block(
        rrule=found["RRULE"][0].upper().removesuffix(";"),
        start=parse_moment(found["DTSTART"][0], field) if found["DTSTART"] else None,
        zone=zones.pop() if zones else None,
        added=parse_moments([text for value in found["RDATE"] for text in value.split(",")], field),
        excepted=parse_moments([text for value in found["EXDATE"] for text in value.split(",")], field),
    )


def _line(line: str, field: str) -> tuple[str, str | None, str]:
    parsed = _LINE.fullmatch(line)
    if parsed is None:
        raise Invalid(field, f"{quoted(line)} is not a DTSTART, RRULE, RDATE or EXDATE line: remove it")
    zone = None
    for option in parsed[2].split(";")[1:]:
        name, _, value = option.partition("=")
        if name.upper() == "TZID":
            zone = value.strip('"')
        elif name.upper() != "VALUE" or value.upper() not in {"DATE", "DATE-TIME"}:
            raise Invalid(field, f"{quoted(option)} is not supported: use TZID, VALUE=DATE or VALUE=DATE-TIME")
    return parsed[1].upper(), zone, parsed[3].strip()


def parse_moments(texts: list[str] | tuple[str, ...], field: str) -> tuple[Moment, ...]:
    """Parse the times of a list; the result is sorted and without duplicates."""
    if len(texts) > LIST_MAX:
        raise Invalid(field, f"has {len(texts)} times: at most {LIST_MAX} are allowed")
    found = {parse_moment(text.strip(), field) for text in texts}
    return tuple(sorted(found, key=lambda moment: (moment.seconds, moment.form)))
