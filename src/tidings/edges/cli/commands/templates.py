"""`templates`: subject and body for each channel and language; every change is a new version."""

import argparse
import json
from functools import partial
from typing import Any

from tidings.edges.cli.arguments import Arguments, Rows, add_paging, add_verb, client_of, pair, positive, show_pages
from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.commands.schedule import text_of
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen, shown

# For each channel: the fields of its part, and the one that --body stands for.
PARTS = {
    "email": (("subject", "html", "text"), "text"),
    "sms": (("text",), "text"),
    "push": (("title", "body"), "body"),
    "webhook": (("body",), "body"),
    "in_app": (("title", "body"), "body"),
}
TEXT_FIELDS = ("subject", "title", "body", "html", "text")
URGENCIES = ("asap", "time_sensitive", "digest")
NOT_CONTENT = ("name", "channel", "locale")  # fields of a preview that repeat the request
MARKUP = ("<!doctype", "<html", "<body", "<p>", "<div", "<table", "<h1")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `templates`."""
    verbs = parser.add_subparsers(metavar="put|get|list|versions|delete|preview", required=True)
    _configure_put(
        add_verb(verbs, "put", "store a part of a template, or all of it, as a new version", put, "template")
    )
    getting = add_verb(verbs, "get", "show a template, with the variables that it needs", get, "template")
    getting.add_argument("--version", type=positive, metavar="N", help="this version (default: the latest)")
    add_paging(add_verb(verbs, "list", "list templates by name", index))
    add_paging(add_verb(verbs, "versions", "list the versions of a template, the latest first", versions, "template"))
    deleting = add_verb(verbs, "delete", "delete a template with all its versions", delete, "template")
    deleting.add_argument("--force", action="store_true", help="even if pending notifications need it, which then fail")
    _configure_preview(add_verb(verbs, "preview", "render a template; nothing is sent", preview, "template"))


def _configure_put(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", choices=tuple(PARTS), help="the channel of this part; other parts are kept")
    parser.add_argument("--locale", metavar="TAG", help="the language of this part (default: that of the template)")
    for name, meaning in (
        ("subject", "the subject of an e-mail"),
        ("title", "the title of a push or in-app message"),
        ("body", "the text of any channel; of a webhook a JSON object"),
        ("html", "the HTML of an e-mail"),
        ("text", "the plain text of an e-mail or an SMS"),
    ):
        parser.add_argument(f"--{name}", metavar="LIQUID", help=f"{meaning}: Liquid, @FILE for a file, - for stdin")
    parser.add_argument("--file", metavar="FILE", help="all parts at once: a JSON file, as the HTTP API accepts it")
    parser.add_argument("--urgency", choices=URGENCIES, help="how soon it expires: never, after 30 min, after 24 h")
    parser.add_argument("--expires-after", metavar="DURATION", help="expire after this duration, such as 2h")
    parser.add_argument(
        "--force", action="store_true", help="even if pending notifications lack a variable, and then fail"
    )


def _configure_preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--channel", choices=tuple(PARTS), help="for this channel (default: every channel of the template)"
    )
    add_variables(parser)
    parser.add_argument("--locale", metavar="TAG", help="in this language, or the closest one the template has")
    parser.add_argument("--version", type=positive, metavar="N", help="this version (default: the latest)")


def add_variables(parser: argparse.ArgumentParser) -> None:
    """Add the options for the variables of a template."""
    parser.add_argument(
        "--var",
        action="append",
        default=[],
        type=pair,
        metavar="NAME=VALUE",
        help="a variable of the template; repeatable",
    )
    parser.add_argument("--vars", metavar="JSON", help="all variables as a JSON object; @FILE for a file, - for stdin")


def variables_of(arguments: Arguments) -> dict[str, Any]:
    """The variables; `--var` takes precedence over `--vars`."""
    given = {} if arguments.vars is None else _object(text_of(arguments.vars, "--vars"), "--vars")
    return given | dict(arguments.var)


def put(arguments: Arguments, screen: Screen) -> int:
    """Store a new version: the current one with one part replaced, or all parts from a file."""
    if arguments.urgency is not None and arguments.expires_after is not None:
        raise Failure(Exit.USAGE, "--urgency and --expires-after both set the expiry: give one")
    client = client_of(arguments)
    document = _whole(arguments) if arguments.file is not None else _merged(client, arguments, screen)
    if arguments.urgency is not None:
        document |= {"urgency": arguments.urgency}
        document.pop("expires_after", None)
    if arguments.expires_after is not None:
        document |= {"expires_after": arguments.expires_after}
        document.pop("urgency", None)
    query = {"force": "true" if arguments.force else None}
    try:
        answer = client.call("PUT", _path(arguments.which), query=query, body=document)
    except Failure as failure:
        raise Failure(failure.code, _in_flags(str(failure), document, arguments), failure.document) from None
    if arguments.json:
        screen.json(answer)
    else:
        name = screen.paint(arguments.which, "bold")
        needs = f"; needs {', '.join(map(shown, answer['needs']))}" if answer.get("needs") else ""
        stored = f"{name} version {answer['version']}: {', '.join(answer['channels'])}{needs}"
        screen.say(f"{screen.word(answer['outcome'])} {stored}")
    return Exit.DONE


def _in_flags(text: str, document: dict[str, Any], arguments: Arguments) -> str:
    """The text of an error, with flags in place of the fields of the part that they gave."""
    if arguments.channel is None:
        return text
    fields, body_field = PARTS[arguments.channel]
    part = f"parts.{arguments.channel}.{arguments.locale or document.get('locale') or 'en'}"
    for field in fields:
        flag = "body" if field == body_field and arguments.body is not None else field
        text = text.replace(f"{part}.{field}", f"--{flag}")
    return text


def get(arguments: Arguments, screen: Screen) -> int:
    """Show one version."""
    query = {"version": arguments.version}
    document = client_of(arguments).call("GET", _path(arguments.which), query=query)
    if arguments.json:
        screen.json(document)
        return Exit.DONE
    names = ("name", "version", "locale", "urgency", "expires_after")
    facts = [(name, document.get(name)) for name in names]
    changed = screen.moment(document.get("changed_at"))
    screen.facts([*facts, ("needs", ", ".join(map(shown, document.get("needs") or ()))), ("changed", changed)])
    for channel, languages in document["parts"].items():
        for locale, part in languages.items():
            screen.say("")
            screen.say(screen.paint(f"{channel} {locale}", "bold"))
            _show_part(part, screen)
    return Exit.DONE


def index(arguments: Arguments, screen: Screen) -> int:
    """List templates by name."""
    empty = "no templates: `templates put NAME` creates one"
    rows = partial(_show_rows, screen=screen)
    return show_pages(arguments, screen, "/v1/templates", "templates", rows, empty=empty)


def versions(arguments: Arguments, screen: Screen) -> int:
    """List the versions of a template."""
    rows = partial(_show_versions, screen=screen)
    return show_pages(arguments, screen, f"{_path(arguments.which)}/versions", "versions", rows)


def delete(arguments: Arguments, screen: Screen) -> int:
    """Delete a template with all its versions."""
    query = {"force": "true" if arguments.force else None}
    document = client_of(arguments).call("DELETE", _path(arguments.which), query=query)
    if arguments.json:
        screen.json(document)
    else:
        screen.say(f"deleted {arguments.which}")
    return Exit.DONE


def preview(arguments: Arguments, screen: Screen) -> int:
    """Render a template for one channel, or for each."""
    client, path = client_of(arguments), _path(arguments.which)
    channels = [arguments.channel]
    if arguments.channel is None:
        channels = client.call("GET", path, query={"version": arguments.version})["channels"]
    asked = {"variables": variables_of(arguments), "locale": arguments.locale, "version": arguments.version}
    body = {name: value for name, value in asked.items() if value is not None}
    for number, channel in enumerate(channels):
        document = client.call("POST", f"{path}/preview", body={"channel": channel, **body})
        if arguments.json:
            screen.json(document)
            continue
        if number:
            screen.say("")
        screen.say(screen.paint(channel, "bold"))
        _show_part({name: value for name, value in document.items() if name not in NOT_CONTENT}, screen)
    return Exit.DONE


def _path(name: str) -> str:
    return f"/v1/templates/{segment(name)}"


def _whole(arguments: Arguments) -> dict[str, Any]:
    if given := [name for name in (*TEXT_FIELDS, "channel", "locale") if getattr(arguments, name) is not None]:
        raise Failure(Exit.USAGE, f"--file has all parts in it: leave --{given[0]} out")
    source = arguments.file if arguments.file == "-" else f"@{arguments.file}"
    return _object(text_of(source, "--file"), arguments.file)


def _merged(client: Client, arguments: Arguments, screen: Screen) -> dict[str, Any]:
    """The current template with one part replaced."""
    latest = _latest(client, arguments.which)
    if arguments.channel is None:
        if any(getattr(arguments, name) is not None for name in TEXT_FIELDS) or latest is None:
            raise Failure(Exit.USAGE, "the channel is missing: give --channel, or all parts with --file FILE")
        if arguments.urgency is None and arguments.expires_after is None:
            raise Failure(Exit.USAGE, "nothing to change: give --channel and its texts, or all parts with --file")
        return latest
    document = latest or {"parts": {}, "locale": arguments.locale or "en"}
    locale = arguments.locale or document.get("locale") or "en"
    languages = document["parts"].setdefault(arguments.channel, {})
    languages[locale] = {**languages.get(locale, {}), **_part(arguments, screen)}
    return document


def _latest(client: Client, name: str) -> dict[str, Any] | None:
    """The fields of the latest version that can be stored again; None if there is no such template."""
    try:
        found = client.call("GET", _path(name))
    except Failure as failure:
        if failure.code == Exit.NOT_FOUND:
            return None
        raise
    kept = ("parts", "locale", "urgency", "expires_after")
    return {field: found[field] for field in kept if found.get(field) is not None}


def _part(arguments: Arguments, screen: Screen) -> dict[str, Any]:
    fields, body_field = PARTS[arguments.channel]
    part: dict[str, Any] = {}
    for name in TEXT_FIELDS:
        if (given := getattr(arguments, name)) is None:
            continue
        field = body_field if name == "body" else name
        if field not in fields or field in part:
            wrong = f"{arguments.channel} has no --{name}" if field not in fields else f"--{name} is given twice"
            raise Failure(Exit.USAGE, f"{wrong}: give {', '.join(f'--{each}' for each in fields)}")
        part[field] = text_of(given, f"--{name}")
        if field == "text" and arguments.channel == "email" and part[field].lstrip().lower().startswith(MARKUP):
            screen.note(f"--{name} looks like HTML but is sent as plain text: use --html for HTML")
    if not part:
        raise Failure(Exit.USAGE, f"the content is missing: give {', '.join(f'--{each}' for each in fields)}")
    if arguments.channel == "webhook":
        part["body"] = _object(part["body"], "--body")
    return part


def _object(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        why = f"{error.msg.lower().removesuffix(' at')} (line {error.lineno}, column {error.colno})"
        raise Failure(Exit.USAGE, f"{name}: is not valid JSON: {why}") from None
    except ValueError as error:  # a number of too many digits
        raise Failure(Exit.USAGE, f"{name}: is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise Failure(Exit.USAGE, f'{name}: is not a JSON object: write one such as {{"name": "Ada"}}')
    return document


def _show_rows(rows: Rows, first: bool, screen: Screen) -> None:
    cells = [(row["name"], row["latest"], screen.moment(row["changed_at"])) for row in rows]
    screen.table(("name", "latest", "changed"), cells, heading=first)


def _show_versions(rows: Rows, first: bool, screen: Screen) -> None:
    names = ("version", "channels", "locale", "urgency", "expires after")
    screen.table(names, [_version(row) for row in rows], heading=first)


def _version(version: dict[str, Any]) -> tuple[object, ...]:
    channels = ", ".join(channel for channel, parts in version["parts"].items() if parts)
    return version["version"], channels, version.get("locale"), version.get("urgency"), version.get("expires_after")


def _show_part(part: dict[str, Any], screen: Screen) -> None:
    """Print the fields of a part: short ones beside their names, long ones below."""
    for name, value in part.items():
        if value in (None, ""):
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if name == "segments":
            text = f"{value['count']} ({value['encoding']})"
        lines = [shown(line) for line in text.splitlines()] or [""]
        if len(lines) == 1:
            screen.say(f"  {screen.paint(name, 'dim')}  {lines[0]}")
            continue
        screen.say(f"  {screen.paint(name, 'dim')}")
        for line in lines:
            screen.say(f"    {line}".rstrip())
