"""Refusals of JSON that does not have the shape it should: which field is wrong, and what to send instead.

Every edge decodes with these, so that the same mistake has the same text everywhere.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from tidings.domain.errors import Invalid
from tidings.shapes.fields import current_names_at, field_at

T = TypeVar("T")

NAMED_MAX = 12  # with more fields, a refusal does not list them

# The decoder's names of the JSON types, in the words of an error: what was sent, and what to send instead.
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

_ANY_KEY = "[...]"  # how the decoder writes the key of an object in a path
_STEPS = re.compile(r"\[\.\.\.\]|\[[0-9]+\]|[^.\[\]]+")
_PATH = re.compile(r" - at (`key` in )?`\$\.?(.*?)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_KIND = re.compile(r"Expected `([a-z |]+)`, got `(\w+)`")
_BOUND = re.compile(r"Expected `int` (>=|<=) (-?[0-9]+)")
_BOUNDS = {">=": "too small: send a whole number of at least", "<=": "too large: send a whole number of at most"}
_ENUM = re.compile(r"Invalid enum value '?(.*?)'?$", re.DOTALL)
_TEXT_CHARS_MAX = 48
_FIELDS_CHECKED_MAX = 100  # of a document that is wrong

EMPTY_BODY = "is empty: send a JSON object"

Shape = type[Any]

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refusal(
    error: msgspec.MsgspecError | UnicodeError | RecursionError,
    shape: Shape,
    field: str = "body",
) -> Invalid:
    """The refusal for an error that the decoder of a shape raised."""
    if isinstance(error, UnicodeError):
        takes_bytes = any(each.encode_name == "value_base64" for each in msgspec.structs.fields(shape))
        advice = "send bytes that are not text in 'value_base64'" if takes_bytes else "encode it as UTF-8"
        return Invalid(field, f"is not UTF-8, as JSON must be: {advice}")
    if isinstance(error, RecursionError):
        return Invalid(field, "is nested too deeply: send fewer levels, or send it as one string")
    if isinstance(error, msgspec.ValidationError):
        return _wrong_shape(str(error), shape, field)
    text = str(error)
    if "truncated" in text:
        return Invalid(field, "is incomplete JSON, or has half of a surrogate pair: send all of it")
    return Invalid(field, f"is not valid JSON ({text.removeprefix('JSON is malformed: ')}): correct it there")


def refusals(
    error: msgspec.MsgspecError | UnicodeDecodeError | RecursionError,
    shape: Shape,
    decode: Callable[[bytes], object],
    body: bytes,
    field: str = "body",
) -> Invalid:
    """The same with the errors of all fields: the decoder stops at the first, so each field is decoded by itself."""
    first = refusal(error, shape, field)
    if not isinstance(error, msgspec.ValidationError):
        return first
    try:
        members = _decode_members(body)
    except msgspec.ValidationError:  # it is no object
        return first
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as broken:  # behind the first wrong field
        return refusal(broken, shape, field)
    found: dict[str, Invalid] = {}
    for name in list(members)[:_FIELDS_CHECKED_MAX]:
        error_alone = _error_alone({name: members[name]}, decode)
        if error_alone is not None:
            invalid = refusal(error_alone, shape, field)
            if _ANY_KEY in invalid.field:
                invalid = Invalid(_with_keys(invalid.field, str(error_alone), members[name], decode), invalid.detail)
            found.setdefault(invalid.field, invalid)
    for required in msgspec.structs.fields(shape):
        if required.required and required.encode_name not in members:
            found.setdefault(required.encode_name, Invalid(required.encode_name, "is missing: give it"))
    if not found:
        return first
    first, *others = found.values()
    return Invalid(first.field, first.detail, tuple(others))


def _error_alone(members: dict[str, Any], decode: Callable[[bytes], object]) -> msgspec.ValidationError | None:
    """The error of a document that has only some of its fields; that others are missing is none."""
    try:
        decode(msgspec.json.encode(members))
    except msgspec.ValidationError as error:
        is_incomplete = _MISSING.match(str(error)) and _PATH.search(str(error)) is None
        return None if is_incomplete else error
    return None


def _with_keys(where: str, text: str, raw: msgspec.Raw, decode: Callable[[bytes], object]) -> str:
    """The path of an error with the keys that the client wrote, for which the decoder writes `[...]`.

    For each such place it looks for the key whose value alone gives the same error, `text`:
    `parts.email[...].subject` is `parts.email.en.subject`.
    """
    name, *steps = _STEPS.findall(where)
    try:
        document: dict[str, Any] = {name: msgspec.json.decode(raw)}
    except (msgspec.MsgspecError, RecursionError):  # a number that no float can hold, for example
        return where.partition(_ANY_KEY)[0]
    parent: Any = document
    key: Any = name
    path: str = name
    for number, step in enumerate(steps):
        value = parent[key]
        if step == _ANY_KEY and isinstance(value, dict):
            wrong = None
            for name, member in value.items():
                parent[key] = {name: member}
                if str(_error_alone(document, decode)) == text:
                    wrong = name
                    break
            if wrong is None:
                return where
            path, parent, key = f"{path}.{shorten(wrong)}", parent[key], wrong
        elif isinstance(value, list) and step.startswith("["):
            path, parent, key = path + step, value, int(step[1:-1])
        elif isinstance(value, dict) and step in value:
            path, parent, key = f"{path}.{step}", value, step
        else:  # it names what is missing
            return path + "".join(each if each.startswith("[") else f".{each}" for each in steps[number:])
    return path


def refused_words(field: str, word: str, words: Iterable[str]) -> Invalid:
    """The refusal of a word that is not one of the allowed ones."""
    return Invalid(field, f"{shorten(word)!r} is not known: use one of {', '.join(words)}")


def shorten(text: str) -> str:
    """The text, truncated if it is too long to be repeated in an error."""
    return text if len(text) <= _TEXT_CHARS_MAX else text[: _TEXT_CHARS_MAX - 3] + "..."


def unknown_field(name: str, fields: Iterable[str], where: str = "") -> Invalid:
    """The refusal of an unknown field of the object at the path `where`, with the closest known name, or the few."""
    known = sorted(fields)
    near = difflib.get_close_matches(name[:_TEXT_CHARS_MAX], known, 1)
    others = f"use one of {', '.join(known)}" if 0 < len(known) <= NAMED_MAX else "leave it out"
    advice = f"did you mean {near[0]!r}?" if near else others
    return Invalid(f"{where}.{shorten(name)}" if where else shorten(name), f"unknown field: {advice}")


def _wrong_shape(text: str, shape: Shape, field: str) -> Invalid:
    path = _PATH.search(text)
    what = text[: path.start()] if path else text
    where = path[2] if path else ""
    if unknown := _UNKNOWN.match(what):
        return unknown_field(unknown[1], current_names_at(shape, where), where)
    if missing := _MISSING.match(what):
        return Invalid(f"{where}.{missing[1]}" if where else missing[1], "is missing: give it")
    if not where:
        return Invalid(field, _plain(what, "a JSON object"))
    declared = field_at(shape, where)
    is_inside = where.endswith(_ANY_KEY) and (kind := _KIND.match(what)) is not None and "object" not in kind[1]
    own = None if is_inside else declared  # what a field takes as a whole does not say what a value in it must be
    if declared is None:  # it is inside a table: the words of that field apply, but not what it takes as a whole
        declared = field_at(shape, re.split(r"[.\[]", where, maxsplit=1)[0])
    if declared is not None and declared.words and (word := _ENUM.match(what)):
        if word[1] in declared.words:  # alone, where a list of them is wanted
            return Invalid(where, f'is text: send a list, ["{word[1]}"]')
        return refused_words(where, word[1], declared.words)
    subject = "has a key that " if path and path[1] else ""
    return Invalid(where, subject + _plain(what, None if own is None else own.send))


def _plain(what: str, example: str | None) -> str:
    """What is wrong and what to send instead, in the terms of JSON rather than those of the decoder."""
    if found := _KIND.match(what):
        wanted = [_WANTED.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
        return f"is {_SENT.get(found[2], found[2])}: send {example or ' or '.join(wanted)}"
    if found := _BOUND.match(what):
        return f"is {_BOUNDS[found[1]]} {found[2]}"
    what = what.replace("`array`", "an array").replace("`", "")
    return f"{what[:1].lower()}{what[1:]}: send {example or 'another one'}"


def convert(document: Any, kind: type[T]) -> T:
    """The document as a value of this kind; `Invalid` names the field at fault."""
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise _with_key_of(refusal(error, kind), str(error), document, kind) from None


def _with_key_of(invalid: Invalid, text: str, document: Any, kind: type[Any]) -> Invalid:
    """The refusal with the key that the client wrote: `preferences.sms` instead of `preferences[...]`."""
    if _ANY_KEY not in invalid.field or not isinstance(document, dict):
        return invalid
    decoder = msgspec.json.Decoder(kind)
    try:
        raw = msgspec.Raw(msgspec.json.encode(document[_STEPS.findall(invalid.field)[0]]))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):  # a value that JSON does not have
        return invalid
    return Invalid(_with_keys(invalid.field, text, raw, decoder.decode), invalid.detail)


def decode(line: bytes | str, kind: type[T]) -> T:
    """A line of JSON as a value of this kind."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise refusal(error, kind) from None
