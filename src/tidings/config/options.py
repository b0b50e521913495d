"""The settings as they are written: names, kinds and bounds, derived from `settings.py`; parsing and showing values."""

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union, assert_never, get_args, get_origin, get_type_hints

import msgspec

from tidings.config.checks import NAMES, NOT_EMPTY, NUMBERS, TEXTS, without_password
from tidings.config.settings import Config
from tidings.domain.schedules.schedule import LIMITS_MOST
from tidings.domain.units import SIZE_HINT, SPAN_HINT, format_size, format_span, parse_size, parse_span

PREFIX = "TIDINGS_"
SECOND_US = 1_000_000
UNLIMITED = "none"
HIDDEN = "***"
EMPTY = "none"
LIST_HINT = 'write a list such as ["a", "b"], or a,b in one line'
TABLE_HINT = 'write a table such as {a = "x", b = "y"}, or a=x,b=y in one line'
LISTS_HINT = 'write a table of lists such as {a = ["x", "y"]}, or a=x,a=y in one line'
SWITCH = {"true": "on", "yes": "on", "false": "off", "no": "off"}  # also accepted for on and off

Kind = Literal["text", "number", "size", "duration", "choice", "list", "table", "lists"]
Value = int | str | tuple[str, ...] | dict[str, str] | dict[str, tuple[str, ...]] | None


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its names, the kind of its value, and its bounds."""

    section: str
    field: str
    key: str
    kind: Kind
    default: Value
    choices: tuple[str, ...]
    optional: bool
    least: int
    most: int | None

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.section}_{self.key}".upper()

    @property
    def is_switch(self) -> bool:
        return set(self.choices) == {"off", "on"}

    @property
    def allowed(self) -> str:
        """What may be written, for an error message."""
        text = {
            "text": "write a string",
            "number": f"write a whole number from {self.least}" + (f" to {self.most}" if self.most else ""),
            "size": SIZE_HINT,
            "duration": SPAN_HINT,
            "choice": f"write one of {', '.join(self.choices)}",
            "list": f"{LIST_HINT}, of {', '.join(self.choices)}" if self.choices else LIST_HINT,
            "table": TABLE_HINT,
            "lists": LISTS_HINT,
        }[self.kind]
        return f'{text}, or "{UNLIMITED}"' if self.optional else text


# The tables of providers are read by `config/provider_tables.py`: most of their keys are the provider's own settings.
SECTION_NAMES = tuple(name for name in Config.__struct_fields__ if name != "channels")

# Bounds other than "at least one".
_LEAST = {
    "server.port": 0,
    "server.slow_reader_timeout": 100_000,
    "dispatch.low_priority_jitter": 0,
    "delivery.concurrency": 2,
    "delivery.send_timeout": 100_000,
    "limits.headers_max": 0,
    "limits.labels_max": 0,
}
_MOST = {"server.port": 65_535, "store.lanes": 256, "log.partitions": 16, "node.processes": 256}


def _options() -> Iterator[Option]:
    for section in SECTION_NAMES:
        struct = get_type_hints(Config)[section]
        defaults = struct()
        for field, hint in get_type_hints(struct).items():
            key = field.replace("_bytes", "_size").removesuffix("_us").removesuffix("_s")
            optional = get_origin(hint) in {Union, types.UnionType}
            kind, choices = _kind(field, hint)
            name = f"{section}.{key}"
            yield Option(
                section=section,
                field=field,
                key=key,
                kind=kind,
                default=getattr(defaults, field),
                choices=choices,
                optional=optional,
                least=_LEAST.get(name, 1),
                most=LIMITS_MOST.get(field) if section == "limits" else _MOST.get(name),
            )


def _kind(field: str, hint: Any) -> tuple[Kind, tuple[str, ...]]:
    """The kind of a setting, and the words to choose from."""
    of = get_args(hint)
    if get_origin(hint) is Literal:
        return "choice", of
    if get_origin(hint) is tuple:
        return "list", get_args(of[0])
    if get_origin(hint) is dict:
        return ("table" if of[1] is str else "lists"), ()
    if hint is str or str in of:
        return "text", ()
    if "_bytes" in field:
        return "size", ()
    return ("duration" if field.endswith(("_us", "_s")) else "number"), ()


OPTIONS = {option.name: option for option in _options()}
SECTIONS = {section: [o for o in OPTIONS.values() if o.section == section] for section in SECTION_NAMES}


def parse(option: Option, raw: object) -> Value:
    """The value of an option from what was written; raises ValueError with what is allowed."""
    if option.optional and raw == UNLIMITED:
        return None
    match option.kind:
        case "list" | "table" | "lists":
            return _several(option, raw)
        case "text":
            text = _text(option, raw)
            if not text.strip():
                raise ValueError(f"is empty: {option.allowed}")
            return _checked(option, text)
        case "choice":
            return _checked(option, _text(option, raw))
        case "number" | "size" | "duration":
            text = _text(option, raw)
            amount = _bounded(option, _amount(option, text), text)
            return NUMBERS[option.name](amount) if option.name in NUMBERS else amount
        case _:
            assert_never(option.kind)


def _text(option: Option, raw: object) -> str:
    """The text of a single value; a TOML file has numbers, `true` and `false` without quotes."""
    is_whole = isinstance(raw, int) and not isinstance(raw, bool)
    if (option.kind == "number" and is_whole) or (option.is_switch and isinstance(raw, bool)):
        return str(raw)
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not understood: {option.allowed}")
    return raw


def _several(option: Option, raw: object) -> Value:
    if option.kind == "list":
        items = tuple(_checked(option, item) for item in read_list(raw, option.allowed))
        if not items and option.name in NOT_EMPTY:
            raise ValueError(f"is empty: {option.allowed}")
        return items
    if option.kind == "table":
        return {NAMES[option.name](name): _checked(option, text) for name, text in read_table(raw).items()}
    lists = read_lists(raw).items()
    return {NAMES[option.name](name): tuple(_checked(option, item) for item in items) for name, items in lists}


def _checked(option: Option, text: str) -> str:
    if option.choices:
        return _chosen(option, text)
    return TEXTS[option.name](text) if option.name in TEXTS else text


def _chosen(option: Option, text: str) -> str:
    """The choice that a text means, ignoring case (Kafka writes SASL_SSL); yes, no, true and false mean on and off."""
    word = SWITCH.get(text.lower(), text) if option.is_switch else text
    for choice in option.choices:
        if choice.lower() == word.lower():
            return choice
    raise ValueError(f"{text!r} is not known: use {', '.join(option.choices)}")


def _amount(option: Option, text: str) -> int:
    if option.kind == "size":
        return parse_size(text)
    if option.kind == "duration":
        us = parse_span(text)
        if option.field.endswith("_us"):
            return us
        if us % SECOND_US:
            raise ValueError(f"{text!r} is not in whole seconds: {option.allowed}")
        return us // SECOND_US
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number: {option.allowed}")
    return int(text)


def _bounded(option: Option, amount: int, text: str) -> int:
    if amount < option.least or (option.most is not None and amount > option.most):
        least = written(option, option.least)
        most = "" if option.most is None else f", at most {written(option, option.most)}"
        raise ValueError(f"{text!r} is out of bounds: at least {least}{most}")
    return amount


def written(option: Option, value: Value) -> str:
    """A value as it would be written in the file, without quotes. A password is not shown."""
    if value is None:
        return UNLIMITED
    if option.field.endswith("_password"):
        return HIDDEN
    if option.name == "store.path":
        return without_password(str(value), HIDDEN)
    if isinstance(value, tuple | dict):
        return to_toml(value)
    if option.kind == "size":
        return format_size(int(value))
    if option.kind == "duration":
        return format_span(int(value) * (1 if option.field.endswith("_us") else SECOND_US))
    return str(value)


def read_list(raw: object, hint: str = LIST_HINT) -> tuple[str, ...]:
    """The strings of a list, without duplicates."""
    if isinstance(raw, str):
        raw = [] if raw == EMPTY else [item.strip() for item in raw.split(",")]
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise ValueError(f"{raw!r} is not understood: {hint}")
    if not all(raw):
        raise ValueError(f"{','.join(raw)!r} has an empty entry: {hint}")
    return tuple(dict.fromkeys(raw))


def read_table(raw: object) -> dict[str, str]:
    """The strings of a table, by name."""
    table: dict[str, str] = {}
    for name, text in _pairs(raw, TABLE_HINT):
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name!r} has no text: {TABLE_HINT}")
        if table.setdefault(name, text) != text:
            raise ValueError(f"{name!r} is given twice: {TABLE_HINT}")
    return table


def read_lists(raw: object) -> dict[str, tuple[str, ...]]:
    """The lists of a table, by name."""
    table: dict[str, tuple[str, ...]] = {}
    for name, items in _pairs(raw, LISTS_HINT):
        given = [items] if isinstance(items, str) and items else items or []
        table[name] = (*table.get(name, ()), *read_list(given, LISTS_HINT))
    return table


def _pairs(raw: object, hint: str) -> list[tuple[str, object]]:
    if isinstance(raw, dict):
        return list(raw.items())
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not understood: {hint}")
    pairs: list[tuple[str, object]] = []
    for item in [] if raw == EMPTY else raw.split(","):
        name, equals, text = item.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{item!r} is not name=text: {hint}")
        pairs.append((name.strip(), text.strip()))
    return pairs


def to_toml(value: Sequence[str] | Mapping[str, str] | Mapping[str, Sequence[str]] | str) -> str:
    """A value on one line of a TOML file. JSON strings are valid TOML, except that TOML requires DEL to be escaped."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{to_toml(name)} = {to_toml(item)}' for name, item in value.items())}}}"
    return f"[{', '.join(map(to_toml, value))}]"
