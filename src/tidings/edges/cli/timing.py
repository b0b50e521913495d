"""The options that say when, of the commands `schedule`, `replace`, `preview` and `notify`."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, add_field, positive
from tidings.shapes.fields import fields_of, names_of
from tidings.shapes.schedule import NewSchedule, When

WHEN = ("at", "every", "rrule", "cron")
LISTS = ("rdates", "exdates")
BESIDE = tuple(name for name in names_of(When) if name not in {*WHEN, *LISTS, "scheduled_at"})
METAVARS = {"at": "TIME", "every": "INTERVAL", "rrule": "RULE", "cron": "EXPRESSION", "start": "TIME", "until": "TIME"}


def add_timing(
    parser: argparse.ArgumentParser, shape: type[When] = NewSchedule, *, required: bool = False, ends: bool = True
) -> None:
    """The options for the fields of `shape` that say when. `ends`: `--count` ends a rule."""
    when = parser.add_mutually_exclusive_group(required=required)
    for name in WHEN:
        add_field(when, shape, name, metavar=METAVARS[name])
    group = parser.add_argument_group("recurring and local times")
    for name in BESIDE:
        add_field(group, shape, name, **({"metavar": METAVARS[name]} if name in METAVARS else {}))
    if ends:
        add_field(group, shape, "count", type=positive, metavar="N")
    for name in LISTS:
        help_text = f"{fields_of(shape)[name].description.rstrip('.')}; may be repeated"
        group.add_argument(
            f"--{name.removesuffix('s')}", action="append", default=[], dest=name, metavar="TIME", help=help_text
        )


def timing_of(arguments: Arguments) -> dict[str, Any]:
    """The same as the HTTP API takes it."""
    given = {name: getattr(arguments, name) for name in (*WHEN, *BESIDE)}
    document = {name: value for name, value in given.items() if value is not None}
    return document | {name: value for name in LISTS if (value := getattr(arguments, name))}
