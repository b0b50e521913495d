"""`serve`: start Tidings here."""

import argparse
import os

from tidings.edges.cli.arguments import Arguments, pair
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.screen import Screen

# Flags of their own for what is said most often; `--set` reaches everything.
FLAGS = {
    "--host": ("server.host", "where to listen (127.0.0.1); any other address wants API keys"),
    "--port": ("server.port", "on which port (8460); 0 takes a free one"),
    "--store": ("store.path", "the file that holds everything (tidings.db), or postgres://user@host/database to share"),
    "--roles": ("node.roles", "what this node does: api, intake, dispatch, deliver (all of them)"),
    "--kafka": ("kafka.servers", "read requests from this Kafka and release to it (host:port, more after commas)"),
    "--log-format": ("logs.format", "auto, human or json"),
    "--log-level": ("logs.level", "debug, info, warning or error"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Fill in the parser."""
    for flag, (_, purpose) in FLAGS.items():
        parser.add_argument(flag, help=purpose)
    parser.add_argument("--config", metavar="FILE", help="settings (or TIDINGS_CONFIG; ./tidings.toml if there is one)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=pair,
        metavar="SECTION.KEY=VALUE",
        help="any setting, as in the file",
    )
    parser.add_argument("--print-config", action="store_true", help="show every setting and where it is from, and end")
    parser.set_defaults(run=serve)


def serve(arguments: Arguments, screen: Screen) -> int:
    """Run a node until it is told to stop."""
    from tidings.config import ConfigError, load, render

    try:
        loaded = load(arguments.config, os.environ, flags_of(arguments))
    except ConfigError as error:
        raise Failure(Exit.USAGE, "the settings cannot be used\n" + "\n".join(error.problems)) from None
    arguments.hooks.check_channels(loaded.config)
    if arguments.print_config:
        screen.say(render(loaded).rstrip("\n"))
        return Exit.DONE
    code: int = arguments.hooks.run_node(loaded.config)
    return code


def flags_of(arguments: Arguments) -> dict[str, tuple[str, str]]:
    """The settings given as flags: by name, the flag and the value."""
    given: dict[str, tuple[str, str]] = {}
    for name, value in arguments.set:
        given[name] = f"--set {name}", value
    for flag, (name, _) in FLAGS.items():
        value = getattr(arguments, flag.strip("-").replace("-", "_"))
        if value is not None:
            given[name] = flag, value
    return given
