"""When, as the commands `schedule`, `replace` and `preview` take it."""

import argparse
from typing import Any

from tidings.edges.cli.arguments import Arguments, positive

WHEN = ("at", "every", "rrule", "cron")
BESIDE = ("zone", "start", "until", "gap", "overlap", "calendar", "on_excluded")
LISTS = ("rdates", "exdates")


def add_timing(
    parser: argparse.ArgumentParser, *, required: bool = False, ends: bool = True, hers: bool = False
) -> None:
    """When it leaves. `ends`: `--count` is the rule's own, and not how many are shown. `hers`: it is for a person."""
    when = parser.add_mutually_exclusive_group(required=required)
    now = "" if required else "; default: now"
    local = 'on her clocks "tomorrow 09:00" or "2026-11-20 09:00"' if hers else "a local one with --zone"
    when.add_argument("--at", help=f"+5s, PT5S, a time such as 2026-11-20T09:00:00Z, or {local}{now}")
    when.add_argument("--every", metavar="INTERVAL", help="repeat: PT10M, or R/2026-11-20T09:00:00Z/PT1H")
    when.add_argument(
        "--rrule", metavar="RULE", help='an RFC 5545 rule, such as "FREQ=WEEKLY;BYDAY=MO;BYHOUR=9;BYMINUTE=0"'
    )
    when.add_argument("--cron", metavar="EXPRESSION", help='a cron expression, such as "*/5 9-17 * * MON-FRI"')
    group = parser.add_argument_group("recurring and local times")
    zone = "; left out: hers" if hers else ""
    group.add_argument("--zone", help=f"the time zone of local times, such as Europe/Berlin{zone}")
    group.add_argument("--start", metavar="TIME", help="the start of the rule; default: now")
    group.add_argument("--until", metavar="TIME", help="no occurrence after this; a date includes that whole day")
    if ends:
        group.add_argument("--count", type=positive, metavar="N", help="end after N occurrences")
    group.add_argument(
        "--gap",
        choices=("forward", "skip"),
        help="what to do with a local time that a DST change skips (default: forward)",
    )
    group.add_argument(
        "--overlap",
        choices=("first", "second", "both"),
        help="which one, of a local time that occurs twice at a DST change (default: first)",
    )
    for name, meaning in (("rdate", "an additional time"), ("exdate", "a time or a date to leave out")):
        group.add_argument(
            f"--{name}", action="append", default=[], dest=f"{name}s", metavar="TIME", help=f"{meaning}; repeatable"
        )
    group.add_argument("--calendar", metavar="NAME", help="a calendar of days off")
    group.add_argument(
        "--on-excluded", choices=("skip", "next_day"), help="what to do with an occurrence on a day off (default: skip)"
    )


def timing_of(arguments: Arguments) -> dict[str, Any]:
    """The same as the HTTP API takes it."""
    given = {name: getattr(arguments, name) for name in (*WHEN, *BESIDE)}
    document = {name: value for name, value in given.items() if value is not None}
    return document | {name: value for name in LISTS if (value := getattr(arguments, name))}
