"""What a JSON decoder complains about, said so that its reader knows what to change."""

import difflib
import re
from collections.abc import Iterable

import msgspec

from tidings.domain.errors import Invalid
from tidings.domain.rendered import CHANNEL_NAMES

_EXAMPLES = {
    "at": 'an instant or a duration as text, for example "2026-11-20T09:00:00Z" or "+5s"',
    "every": 'a period or interval as text, for example "PT10M" or "R5/2026-11-20T09:00:00Z/PT1H"',
    "headers": '[["name", "value"], ...] or {"name": "value"}; a value is text, null or {"base64": "..."}',
    "key": "text; bytes that are not text go into 'key_base64'",
    "labels": 'an object of texts, for example {"campaign": "autumn"}',
    "priority": 'one of "high", "normal", "low"',
    "late": 'one of "fire_latest", "fire_all", "skip"',
    "rrule": 'a rule as text, for example "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0"',
    "cron": 'an expression as text, for example "*/5 9-17 * * MON-FRI"',
    "zone": 'the name of a zone as text, for example "Europe/Berlin"',
    "count": "a whole number from 1 on",
    "topic": 'text, for example "greetings"',
    "id": "text, or leave it out and one is made",
}
_DURATIONS = ("expires_after", "late_grace", "late_max", "jitter")
_EXAMPLES |= dict.fromkeys(_DURATIONS, 'a duration as text, for example "PT1H" or "90s"')
_EXAMPLES |= dict.fromkeys(("start", "until"), 'a time as text, for example "2026-11-20T09:00:00"')
_EXAMPLES |= dict.fromkeys(("rdates", "exdates"), 'an array of times, for example ["2026-12-25T09:00:00"]')
_EXAMPLES["scheduled_at"] = _EXAMPLES["at"]
_EXAMPLES["channel"] = f"one of {', '.join(CHANNEL_NAMES)}"
_EXAMPLES["channels"] = f'"all", or an array of some of {", ".join(CHANNEL_NAMES)}'
_EXAMPLES["spread"] = 'one of "first", "all"'
_EXAMPLES["urgency"] = 'one of "asap", "time_sensitive", "digest"'
_EXAMPLES["wait"] = 'seconds, or a duration as text, for example "30s"'
_EXAMPLES["offsets"] = 'an object of whole numbers, for example {"2": 41}'
# Of words that stand further inside, whatever they stand in.
_CHOICES = {"platform": 'one of "apns", "fcm"', "then": 'one of "defer", "drop"'}

# The decoder's names of JSON's kinds, as something that was sent and as something to send.
_SENT = {
    "str": "text",
    "int": "a number",
    "float": "a number with a fraction",
    "bool": "true or false",
    "null": "null",
    "array": "an array",
    "object": "an object",
}
_WANTED = _SENT | {"int": "a whole number"}

_PATH = re.compile(r" - at (`key` in )?`\$\.?(.*?)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_KIND = re.compile(r"Expected `([a-z |]+)`, got `(\w+)`")
_BOUND = re.compile(r"Expected `int` (>=|<=) (-?[0-9]+)")
_BOUNDS = {">=": "too small: send a whole number of at least", "<=": "too large: send a whole number of at most"}
_TEXT_CHARS_MAX = 48


def refusal(
    error: msgspec.MsgspecError | UnicodeDecodeError | RecursionError,
    fields: Iterable[str],
    field: str = "body",
) -> Invalid:
    """The refusal for what a decoder raised about an object with these fields."""
    if isinstance(error, UnicodeDecodeError):
        return Invalid(field, "is not UTF-8: JSON must be; bytes that are not text go into 'value_base64'")
    if isinstance(error, RecursionError):
        return Invalid(field, "is nested too deeply: send fewer levels, or send it as one text")
    if isinstance(error, msgspec.ValidationError):
        return _wrong_shape(str(error), fields, field)
    text = str(error)
    if "truncated" in text:
        return Invalid(field, "is not whole: the JSON ends too early, or holds half of a surrogate pair")
    return Invalid(field, f"is not JSON ({text.removeprefix('JSON is malformed: ')}): correct it there")


def refused_words(field: str, word: str, words: Iterable[str]) -> Invalid:
    """The refusal of a word that is none of the known ones."""
    return Invalid(field, f"{shorten(word)!r} is not known: use one of {', '.join(words)}")


def shorten(text: str) -> str:
    """The text, cut where it is too long to be repeated in an answer."""
    return text if len(text) <= _TEXT_CHARS_MAX else text[: _TEXT_CHARS_MAX - 3] + "..."


def unknown_field(name: str, fields: Iterable[str]) -> Invalid:
    """The refusal of a field by its name, with what was perhaps meant."""
    known = sorted(fields)
    near = difflib.get_close_matches(name[:_TEXT_CHARS_MAX], known, 1)
    advice = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"
    return Invalid(shorten(name), f"is not a field here: {advice}")


def _wrong_shape(text: str, fields: Iterable[str], field: str) -> Invalid:
    path = _PATH.search(text)
    what = text[: path.start()] if path else text
    where = path[2] if path else ""
    if unknown := _UNKNOWN.match(what):
        if where:
            return Invalid(where, f"has the field {shorten(unknown[1])!r}, which is not known: leave it out")
        return unknown_field(unknown[1], fields)
    if missing := _MISSING.match(what):
        return Invalid(f"{where}.{missing[1]}" if where else missing[1], "is missing: give it")
    if not where:
        return Invalid(field, _plain(what, "a JSON object"))
    root = re.split(r"[.\[]", where, maxsplit=1)[0]
    subject = "has a key that " if path and path[1] else ""
    example = _EXAMPLES.get(root)
    if "enum value" in what:
        example = _CHOICES.get(where.rpartition(".")[2], example)
    return Invalid(where, subject + _plain(what, example))


def _plain(what: str, example: str | None) -> str:
    """What is wrong and what to send instead, in the words of JSON rather than the decoder's."""
    if found := _KIND.match(what):
        wanted = [_WANTED.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"is {_SENT.get(found[2], found[2])}: send {example or ' or '.join(wanted)}"
    if found := _BOUND.match(what):
        return f"is {_BOUNDS[found[1]]} {found[2]}"
    what = what.replace("`array`", "an array").replace("`", "")
    return f"{what[:1].lower()}{what[1:]}: send {example or 'another one'}"
