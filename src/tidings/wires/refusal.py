"""What a JSON decoder complains about, said so that its reader knows what to change."""

import difflib
import re
from collections.abc import Iterable

import msgspec

from tidings.domain.errors import Invalid
from tidings.shapes.fields import field_at, names_of

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
_ENUM = re.compile(r"Invalid enum value '?(.*?)'?$", re.DOTALL)
_TEXT_CHARS_MAX = 48

Shape = type[msgspec.Struct]


def refusal(
    error: msgspec.MsgspecError | UnicodeDecodeError | RecursionError,
    shape: Shape,
    field: str = "body",
) -> Invalid:
    """The refusal for what a decoder of this shape raised."""
    if isinstance(error, UnicodeDecodeError):
        return Invalid(field, "is not UTF-8: JSON must be; bytes that are not text go into 'value_base64'")
    if isinstance(error, RecursionError):
        return Invalid(field, "is nested too deeply: send fewer levels, or send it as one text")
    if isinstance(error, msgspec.ValidationError):
        return _wrong_shape(str(error), shape, field)
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


def _wrong_shape(text: str, shape: Shape, field: str) -> Invalid:
    path = _PATH.search(text)
    what = text[: path.start()] if path else text
    where = path[2] if path else ""
    if unknown := _UNKNOWN.match(what):
        if where:
            return Invalid(where, f"has the field {shorten(unknown[1])!r}, which is not known: leave it out")
        return unknown_field(unknown[1], names_of(shape))
    if missing := _MISSING.match(what):
        return Invalid(f"{where}.{missing[1]}" if where else missing[1], "is missing: give it")
    if not where:
        return Invalid(field, _plain(what, "a JSON object"))
    declared = field_at(shape, where)
    if declared is None:
        declared = field_at(shape, re.split(r"[.\[]", where, maxsplit=1)[0])
    if declared is not None and declared.words and (word := _ENUM.match(what)):
        return refused_words(where, word[1], declared.words)
    subject = "has a key that " if path and path[1] else ""
    return Invalid(where, subject + _plain(what, None if declared is None else declared.send))


def _plain(what: str, example: str | None) -> str:
    """What is wrong and what to send instead, in the words of JSON rather than the decoder's."""
    if found := _KIND.match(what):
        wanted = [_WANTED.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"is {_SENT.get(found[2], found[2])}: send {example or ' or '.join(wanted)}"
    if found := _BOUND.match(what):
        return f"is {_BOUNDS[found[1]]} {found[2]}"
    what = what.replace("`array`", "an array").replace("`", "")
    return f"{what[:1].lower()}{what[1:]}: send {example or 'another one'}"
