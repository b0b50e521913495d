"""How fields are declared (base classes, common types, `about`), and how a declaration is read again.

A field is declared as `name: Annotated[type, about("What it is.", "an example")] = default`. The first sentence of the
description is its help text on the command line.
"""

import json
import re
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta

INSTANT = "2026-11-20T09:00:00.000000Z"


class Sent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of request bodies: unknown fields are refused by name."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of response bodies. A field that does not apply is UNSET and left out."""


def about(
    description: str, *examples: object, absent: str | None = None, send: str | None = None, **schema: Any
) -> Meta:
    """The description of a field and examples of it; `schema` is added to its JSON Schema and not checked on decoding.

    `absent` says what holds if the field is left out, if that is not its default; `send` says what to send, in a
    refusal, if that does not follow from the type and the examples.
    """
    extra = {"absent": absent, "send": send}
    return Meta(
        description=description,
        examples=list(examples) or None,
        extra_json_schema=schema or None,
        extra={name: text for name, text in extra.items() if text is not None} or None,
    )


Instant = Annotated[str, Meta(examples=[INSTANT], extra_json_schema={"format": "date-time"})]
Base64 = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})]
Duration = Annotated[str, Meta(examples=["PT1H", "90s"], extra_json_schema={"x-kind": "duration"})]
AlwaysTrue = Annotated[bool, Meta(extra_json_schema={"const": True})]
Cursor = Annotated[str | None, about("Cursor of the next page; null on the last page.")]


_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_CODE = re.compile("`([^`]+)`")
_SENTENCE_END = re.compile(r"(?<=[.])\s+(?=[A-Z`])")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a shape. `absent` is its default in words, `send` says what to send.

    `words` are those that the field, or an item of it, may have beside other values; `choices` are the same if it takes
    nothing else. `is_duration` marks a text that is a duration.
    """

    name: str
    type: Any
    description: str
    examples: tuple[Any, ...]
    words: tuple[str, ...]
    choices: tuple[str, ...]
    required: bool
    default: Any
    absent: str
    send: str
    is_duration: bool
    is_deprecated: bool


@cache
def fields_of(shape: type[msgspec.Struct]) -> dict[str, Field]:
    """The fields of a shape by the names that they have in JSON."""
    return {field.encode_name: _field(field) for field in msgspec.structs.fields(shape)}


def names_of(shape: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the fields of a shape, in their order."""
    return tuple(fields_of(shape))


def help_of(shape: type[msgspec.Struct], name: str) -> str:
    """One line for a terminal: the first sentence, an example unless there are choices, and the default.

    Other fields that it names are options there.
    """
    field = fields_of(shape)[name]
    notes = []
    if field.examples and not field.choices:
        example = field.examples[0]
        notes.append(f"for example {example if isinstance(example, str) else json.dumps(example)}")
    if field.absent:
        notes.append(f"default: {field.absent}")
    text = lowered(_SENTENCE_END.split(field.description)[0].rstrip("."))
    others = fields_of(shape).keys() - {*field.words}
    text = _CODE.sub(lambda found: _option(found[1]) if found[1] in others else found[1], text)
    return f"{text} ({'; '.join(notes)})".replace("`", "").replace("%", "%%") if notes else text.replace("%", "%%")


def lowered(text: str) -> str:
    """The text with a lower-case start; a name such as IANA keeps its capitals."""
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] in {" ", "-"} else text


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def field_at(shape: Any, path: str) -> Field | None:
    """The field that a path such as `$.headers[0]` or `content.text` ends in, or None if it leads elsewhere."""
    found: Field | None = None
    for step in re.sub(r"\[[^]]*]", "", path).split("."):
        inner = next((kind for kind in _members(shape) if isinstance(kind, type) and _is_struct(kind)), None)
        if inner is None or step not in fields_of(inner):
            return None
        found = fields_of(inner)[step]
        shape = found.type
    return found


def names_at(shape: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """The names of the fields of the object at a path such as `content`; none if they are not known."""
    if not path:
        return names_of(shape)
    found = field_at(shape, path)
    inner = () if found is None else _members(found.type)
    return next((names_of(kind) for kind in inner if isinstance(kind, type) and _is_struct(kind)), ())


def current_names_at(shape: Any, path: str) -> tuple[str, ...]:
    """The same without the names of deprecated fields."""
    found = field_at(shape, path) if path else None
    kinds = _members(shape if found is None else found.type) if found is not None or not path else ()
    inner = next((kind for kind in kinds if isinstance(kind, type) and _is_struct(kind)), None)
    return () if inner is None else tuple(name for name, each in fields_of(inner).items() if not each.is_deprecated)


def _is_struct(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct)


def _field(field: msgspec.structs.FieldInfo) -> Field:
    metas = list(_metas(field.type))
    default = None if field.default in {msgspec.NODEFAULT, UNSET} else field.default
    words = tuple(_words(field.type, metas))
    only = all(get_origin(member) is Literal for member in _members(field.type))
    choices = words if only or any("enum" in _schema(meta) for meta in metas) else ()
    examples = tuple(next((meta.examples for meta in metas if meta.examples), ()))
    extra: dict[str, str] = {}
    for meta in metas:
        extra |= meta.extra or {}
    absent = extra.get("absent") or ("" if default in (None, (), "", False) else f"`{default}`")
    return Field(
        name=field.encode_name,
        type=field.type,
        description=next((meta.description for meta in metas if meta.description), ""),
        examples=examples,
        words=words,
        choices=choices,
        required=field.required,
        default=default,
        absent=absent,
        send=extra.get("send") or _wanted(field.type, metas, examples, choices),
        is_duration=any((meta.extra_json_schema or {}).get("x-kind") == "duration" for meta in metas),
        is_deprecated=any(bool(_schema(meta).get("deprecated")) for meta in metas),
    )


def _wanted(kind: Any, metas: list[Meta], examples: tuple[Any, ...], choices: tuple[str, ...]) -> str:
    """What to send: the kind of JSON, and up to two examples."""
    if choices:
        return f"one of {', '.join(json.dumps(choice) for choice in choices)}"
    least = next((bound for meta in metas for bound in (meta.ge, _schema(meta).get("minimum")) if bound), None)
    words = " or ".join(dict.fromkeys(_word(part) for part in _members(kind)))
    words += f" from {least} on" if least is not None else ""
    shown = " or ".join(json.dumps(example, ensure_ascii=False) for example in examples[:2])
    return f"{words}, for example {shown}" if shown else words


def _word(kind: Any) -> str:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in {tuple, list}:
        return "an array" if not inner or _bare(inner[0]) is not str else "an array of texts"
    if origin is dict:
        return "an object of texts" if inner and _bare(inner[1]) is str else "an object"
    return _KINDS.get(origin, "an object")


def _words(kind: Any, metas: list[Meta]) -> Iterator[str]:
    """The words of every Literal in a type, or those that its annotation lists."""
    if listed := next((_schema(meta)["enum"] for meta in metas if "enum" in _schema(meta)), None):
        yield from listed
    elif get_origin(kind) is Literal:
        yield from (word for word in get_args(kind) if isinstance(word, str))
    else:
        for part in get_args(kind):
            yield from _words(part, [])


def _schema(meta: Meta) -> dict[str, Any]:
    return meta.extra_json_schema or {}


def _members(kind: Any) -> Iterator[Any]:
    """The types of a union, without annotations, null and UNSET."""
    kind = _bare(kind)
    if get_origin(kind) in {Union, types.UnionType}:
        for member in get_args(kind):
            yield from _members(member)
    elif get_origin(kind) in {tuple, list, dict} and any(_holds_struct(part) for part in get_args(kind)):
        yield from (part for inner in get_args(kind) for part in _members(inner))
    elif kind not in {type(None), msgspec.UnsetType, Ellipsis}:
        yield kind


def _holds_struct(kind: Any) -> bool:
    return any(isinstance(part, type) and _is_struct(part) for part in _members(kind))


def _bare(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _metas(kind: Any) -> Iterator[Meta]:
    """The annotations of a type from the outermost in; those of the items of a container are not its own."""
    if get_origin(kind) is Annotated:
        yield from (meta for meta in reversed(kind.__metadata__) if isinstance(meta, Meta))
        yield from _metas(get_args(kind)[0])
    elif get_origin(kind) in {Union, types.UnionType}:
        for member in get_args(kind):
            yield from _metas(member)
