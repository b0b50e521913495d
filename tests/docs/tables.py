"""The tables of the reference that are derived from the code: `make docs` writes them into the pages.

Between `<!-- fields: NewSchedule -->` and `<!-- end -->` stands the table of that shape; `flags: schedule` is that of a
command, `options: schedule` that of the library's options, `values: Outcome Record` lists the fields of its values, and
`tables: all` the tables of notifications.
"""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

import tidings
from tests.docs.pages import DOCS
from tidings.domain.notifications.tables import TABLES, Index, Table
from tidings.edges.cli.main import build_parser
from tidings.edges.http.openapi.describe import shapes
from tidings.library import arguments, notification_values
from tidings.library.schedule_values import Options
from tidings.shapes.fields import Answer, Field, fields_of
from tidings.shapes.notification import NewNotification
from tidings.shapes.schedule import NewSchedule, Preview
from tidings.shapes.user import Profile

PAGES = tuple(DOCS / "reference" / f"{name}.md" for name in ("http", "cli", "python", "tables"))

SHARED_FLAGS = {"--help", "--url", "--api-key", "--json", "--tenant"}
# The commands whose flags are fields, and where those are declared. A name behind a command is that of its verb.
COMMANDS: dict[str, type[msgspec.Struct]] = {
    "schedule": NewSchedule,
    "preview": Preview,
    "notify": NewNotification,
    "users put": Profile,
}
# Flags by another name than the field.
RENAMED = {"rdate": "rdates", "exdate": "exdates"}

_MARKED = re.compile(r"(<!-- (fields|flags|options|values|tables): ([\w .]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rewritten(page: str) -> str:
    """The page with every derived table as it should be."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{_TABLES[found[2]](found[3])}\n\n{found[4]}", page)


def fields_table(name: str) -> str:
    """A row for each field of a shape; of a request with its default."""
    [shape] = [each for each in shapes() if each.__name__ == name]
    own_first = {name: field for name, field in fields_of(shape).items() if name in shape.__annotations__}
    fields = (own_first | fields_of(shape)).values()
    if issubclass(shape, Answer):
        return _table(("field", "meaning"), ((f"`{field.name}`", _meaning(field)) for field in fields))
    rows = ((f"`{field.name}`", _meaning(field), _default(field)) for field in fields)
    return _table(("field", "meaning", "default"), rows)


def flags_table(command: str) -> str:
    """A row for each flag of a command, without those that every command has."""
    fields = fields_of(COMMANDS[command])
    rows = []
    for action in _actions(command):
        [flag] = action.option_strings[-1:]
        name = action.dest if flag != "--to" else "topic" if "topic" in fields else "to"
        field = fields.get(RENAMED.get(flag.removeprefix("--"), name))
        if field is None or flag in {"--channel", "--text", "--title", "--html"}:
            meaning = (action.help or "").replace("%%", "%").replace("|", "\\|")
            meaning = f"{meaning}."
        else:
            repeats = isinstance(action, argparse._AppendAction)
            meaning = _with_flags(_meaning(field), fields) + (" May be repeated." if repeats else "")
            meaning += f" Default: {field.absent}." if field.absent else ""
        rows.append((f"`{flag}`", meaning))
    return _table(("flag", "meaning"), rows)


def _with_flags(text: str, fields: dict[str, Field]) -> str:
    """The text with the names of other fields as flags."""
    known = {name for name in fields if name not in {word for field in fields.values() for word in field.words}}
    return re.sub("`([a-z_]+)`", lambda name: f"`--{name[1].replace('_', '-')}`" if name[1] in known else name[0], text)


def options_table(_: str) -> str:
    """A row for each option of `schedule` in the library, with the Python types that it takes."""
    fields = fields_of(NewSchedule)
    takes = arguments.TAKES | arguments.TIME_TAKES
    rows = []
    for name in sorted(Options.__annotations__, key=list(fields).index):
        taken = takes.get(name) or arguments.takes(NewSchedule, name)
        rows.append((f"`{name}`", re.sub(r"'([^']*)'", r"`\1`", taken), _first_sentence(fields[name])))
    return _table(("option", "takes", "meaning"), rows)


def values_table(names: str) -> str:
    """A row for each value of the library, with its fields."""
    rows = []
    for name in names.split():
        value = getattr(tidings, name, None) or getattr(notification_values, name)
        shown = [*value.__struct_fields__, *(each for each, what in vars(value).items() if isinstance(what, property))]
        rows.append((f"`{name}`", ", ".join(f"`{field}`" for field in shown)))
    return _table(("value", "fields"), rows)


def stored_tables(_: str) -> str:
    """A section for each table of notifications: its purpose, its key, its columns and its indexes."""
    return "\n\n".join(_stored_table(table) for table in TABLES.values())


def _stored_table(table: Table) -> str:
    rows = ((f"`{column.name}`", column.kind, column.about) for column in table.columns)
    parts = [
        f"### `{table.name}`",
        f"{table.about} Key: `{table.key}`.",
        _table(("column", "type", "meaning"), rows),
    ]
    if table.indexes:
        parts.append("Indexes, each within a tenant:")
        parts.append("\n".join(f"- {_index(index)}" for index in table.indexes))
    return "\n\n".join(parts)


def _index(index: Index) -> str:
    columns = [*index.columns, *([] if index.order is None else [index.order])]
    text = f"`{index.name}`: by " + ", ".join(f"`{column}`" for column in columns)
    return text + (f", where `{index.present}` is not NULL" if index.present else "")


_TABLES: dict[str, Callable[[str], str]] = {
    "fields": fields_table,
    "flags": flags_table,
    "options": options_table,
    "values": values_table,
    "tables": stored_tables,
}


def _actions(command: str) -> Iterator[argparse.Action]:
    parser: argparse.ArgumentParser = build_parser(command.split()[:1])
    for word in command.split():
        [verbs] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parser = verbs.choices[word]
    for action in parser._actions:
        if action.option_strings and not SHARED_FLAGS & set(action.option_strings):
            yield action


def _meaning(field: Field) -> str:
    """The description, the words it takes unless it names them, and an example."""
    text = field.description
    unsaid = [f"`{word}`" for word in field.choices if f"`{word}`" not in text]
    if unsaid:
        text += f" One of {', '.join(f'`{word}`' for word in field.choices)}."
    elif field.examples and isinstance(field.examples[0], str):
        text += f" Example: `{field.examples[0]}`."
    return text.replace("|", "\\|")


def _first_sentence(field: Field) -> str:
    return re.split(r"(?<=[.])\s+(?=[A-Z`])", field.description)[0].replace("|", "\\|")


_JSON = {"`True`": "`true`", "`False`": "`false`"}  # defaults as a request writes them


def _default(field: Field) -> str:
    return "required" if field.required else _JSON.get(field.absent, field.absent)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" if line[0] != "---" else "|---" * len(line) + "|" for line in lines)


def main() -> None:
    """Write the tables into the pages."""
    for page in PAGES:
        text = page.read_text("utf-8")
        if (new := rewritten(text)) != text:
            page.write_text(new, "utf-8")
            print(f"wrote {page.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
