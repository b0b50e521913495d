"""Settings that are several texts: lists and tables, as a file has them and as a single line does.

In a variable or a flag a list is `a,b`, a table `name=text,name=text`, and a table of lists says a name again for each
text of it (`acme=orders.*,acme=audit`); a name with nothing behind it has an empty list. `none` is empty.
"""

from collections.abc import Mapping, Sequence

import msgspec

EMPTY = "none"
LIST_HINT = 'write a list such as ["a", "b"], or a,b in one line'
TABLE_HINT = 'write a table such as {a = "x", b = "y"}, or a=x,b=y in one line'
LISTS_HINT = 'write a table of lists such as {a = ["x", "y"]}, or a=x,a=y in one line'


def read_list(raw: object, hint: str = LIST_HINT) -> tuple[str, ...]:
    """The texts of a list, each once."""
    if isinstance(raw, str):
        raw = [] if raw == EMPTY else [item.strip() for item in raw.split(",")]
    if not isinstance(raw, list) or not all(isinstance(item, str) for item in raw):
        raise ValueError(f"{raw!r} is not understood: {hint}")
    if not all(raw):
        raise ValueError(f"{','.join(raw)!r} has an empty entry: {hint}")
    return tuple(dict.fromkeys(raw))


def read_table(raw: object) -> dict[str, str]:
    """The texts of a table, by name."""
    table: dict[str, str] = {}
    for name, text in _pairs(raw, TABLE_HINT):
        if not isinstance(text, str) or not text:
            raise ValueError(f"{name!r} has no text: {TABLE_HINT}")
        if table.setdefault(name, text) != text:
            raise ValueError(f"{name!r} is there twice: {TABLE_HINT}")
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
    """A value on one line of a file. JSON's texts are TOML's, but for the character that JSON leaves as it is."""
    if isinstance(value, str):
        return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{to_toml(name)} = {to_toml(item)}' for name, item in value.items())}}}"
    return f"[{', '.join(map(to_toml, value))}]"
