"""When, as the commands `schedule`, `replace` and `preview` take it."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, positive

WHEN = ("at", "every", "rrule", "cron")
BESIDE = ("zone", "start", "until", "gap", "overlap", "calendar", "on_excluded")
LISTS = ("rdates", "exdates")


def add_timing(
    parser: argparse.ArgumentParser, *, required: bool = False, ends: bool = True, of_user: bool = False
) -> None:
    """When it leaves. `ends`: `--count` is the rule's own, and not how many are shown. `of_user`: local times are those
    of the user."""
    when = parser.add_mutually_exclusive_group(required=required)
    now = "" if required else "; left out: now"
    local = 'in the user\'s time zone "tomorrow 09:00" or "2026-11-20 09:00"' if of_user else "a local one with --zone"
    when.add_argument("--at", help=f"+5s, PT5S, a time such as 2026-11-20T09:00:00Z, or {local}{now}")
    when.add_argument("--every", metavar="INTERVAL", help="PT10M, or R/2026-11-20T09:00:00Z/PT1H: again and again")
    when.add_argument("--rrule", metavar="RULE", help='such as "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0" (RFC 5545)')
    when.add_argument("--cron", metavar="EXPRESSION", help='such as "*/5 9-17 * * MON-FRI"')
    group = parser.add_argument_group("recurring and local times")
    zone = "; left out: the user's" if of_user else ""
    group.add_argument("--zone", help=f"whose clocks are meant, such as Europe/Berlin{zone}")
    group.add_argument("--start", metavar="TIME", help="where a rule begins; left out: now")
    group.add_argument("--until", metavar="TIME", help="the last moment; a date counts as a whole day")
    if ends:
        group.add_argument("--count", type=positive, metavar="N", help="end after so many occurrences")
    group.add_argument("--gap", choices=("forward", "skip"), help="a time that clocks jump over (forward)")
    group.add_argument("--overlap", choices=("first", "second", "both"), help="a time that clocks show twice (first)")
    for name, meaning in (("rdate", "a further moment"), ("exdate", "a moment or a date to leave out")):
        group.add_argument(
            f"--{name}", action="append", default=[], dest=f"{name}s", metavar="TIME", help=f"{meaning}; repeatable"
        )
    group.add_argument("--calendar", metavar="NAME", help="the calendar on whose days nothing happens")
    group.add_argument("--on-excluded", choices=("skip", "next_day"), help="what becomes of what falls on them (skip)")


def timing_of(arguments: Arguments) -> dict[str, Any]:
    """The same as the HTTP API takes it."""
    given = {name: getattr(arguments, name) for name in (*WHEN, *BESIDE)}
    document = {name: value for name, value in given.items() if value is not None}
    return document | {name: value for name in LISTS if (value := getattr(arguments, name))}
