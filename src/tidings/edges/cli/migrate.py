"""`migrate`: migrate a store to the layout of this version of Tidings."""

import argparse
from typing import TYPE_CHECKING

from tidings.config.addresses import Place
from tidings.edges.cli.arguments import Arguments, add_schema
from tidings.edges.cli.exits import Exit
from tidings.edges.cli.screen import Screen

if TYPE_CHECKING:
    from tidings.timeline.layouts import Done


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    parser.add_argument(
        "--store",
        metavar="STORE",
        help="a file, or postgres://user@host/database (default: store.path of the settings, or tidings.db)",
    )
    add_schema(parser)
    parser.add_argument(
        "--check", action="store_true", help="only show what would be done; exit code 4 if there is something to do"
    )
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of text for people")
    parser.set_defaults(run=migrate)


def migrate(arguments: Arguments, screen: Screen) -> int:
    """Run the steps, and print the name and the duration of each."""
    taken: list[Done] = []

    def tell(done: "Done") -> None:
        taken.append(done)
        if not arguments.json:
            screen.say(f"{done.name}  {done.elapsed_us / 1_000:,.1f} ms")

    plan = arguments.hooks.migrate_store(Place(arguments.store, arguments.schema), arguments.check, tell)
    if arguments.json:
        steps = [{"name": done.name, "elapsed_ms": done.elapsed_us / 1_000} for done in taken]
        to_do = list(plan.steps) if arguments.check else []
        version = plan.version if arguments.check else plan.known
        screen.json({"from": plan.version, "to": plan.known, "version": version, "steps": steps, "to_do": to_do})
    elif not plan.steps:
        screen.say(f"layout {plan.version}: nothing to do")
    elif arguments.check:
        what = f"layout {plan.version}" if plan.version else "there is no store here"
        screen.say(f"{what}, this version needs {plan.known}; to do: {', '.join(plan.steps)}")
    elif plan.version == 0:
        screen.say(f"there was no store here: created a new one, layout {plan.known}")
    else:
        screen.say(f"layout {plan.version} -> {plan.known}")
    return Exit.CONFLICT if arguments.check and plan.steps else Exit.DONE
