"""From JSON as it was sent to a value, refused by field."""

import re
from collections.abc import Iterator
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from tidings.domain.errors import Invalid

T = TypeVar("T")

DETAIL_CHARS_MAX = 300

_AT = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)
_INDEX = re.compile(r"\[[^]]*]")
_NAMED = re.compile(r"(?:unknown|missing required) field `([^`]*)`")


def convert(document: Any, kind: type[T]) -> T:
    """The document as a value of this kind; `Invalid` names the field at fault."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error), kind) from None


def decode(line: bytes | str, kind: type[T]) -> T:
    """A line of JSON as a value of this kind."""
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.ValidationError as error:
        raise _refused(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Invalid("body", f"is not valid JSON: {str(error)[:DETAIL_CHARS_MAX]}") from None


def _refused(told: str, kind: Any) -> Invalid:
    found = _AT.fullmatch(told)
    reason, path = (found[1], found[2]) if found else (told, "")
    named = _NAMED.search(reason)
    if named:
        field = ".".join(part for part in (path, named[1]) if part)
        wanted = "is missing: give it" if "missing" in reason else "is not a known field: leave it out"
        return Invalid(field[:DETAIL_CHARS_MAX], wanted)
    if "enum value" in reason and (words := list(_choices(kind, _INDEX.sub("", path).split(".")))):
        reason = f"{reason.partition(' - at')[0].removeprefix('Invalid enum value ')} is not one of {', '.join(words)}"
        return Invalid(path[:DETAIL_CHARS_MAX] or "body", reason[:DETAIL_CHARS_MAX])
    return Invalid(path[:DETAIL_CHARS_MAX] or "body", f"has the wrong type: {reason}"[:DETAIL_CHARS_MAX])


def _choices(hint: Any, path: list[str]) -> Iterator[str]:
    """The words that may stand at a path into something of this type."""
    if isinstance(hint, str):
        yield hint
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct) and path:
        yield from _choices(get_type_hints(hint).get(path[0]), path[1:])
    for part in get_args(hint):
        yield from _choices(part, path)
