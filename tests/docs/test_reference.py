"""The reference pages are complete: they name everything that the program has."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import tidings
from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks
from tests.docs.tables import PAGES as TABLED
from tests.docs.tables import rewritten
from tidings import __version__
from tidings.clock import SystemClock
from tidings.config import load, render
from tidings.config.checks import OWN
from tidings.config.options import OPTIONS, Option, written
from tidings.domain.facts import Fact
from tidings.domain.schedules.command import OutcomeWord, State
from tidings.domain.schedules.lateness import MissedReason
from tidings.edges.cli.exit_codes import Exit
from tidings.edges.cli.main import COMMANDS, build_parser
from tidings.edges.http.openapi.describe import describe
from tidings.edges.http.problems import KINDS
from tidings.library.schedule_values import Options
from tidings.observe.delivery import DeliveryMetrics
from tidings.observe.metrics import KafkaMetrics, KasprMetrics, Metrics, Worker
from tidings.ports import Count
from tidings.providers.registry import check_provider, installed, provider_type
from tidings.providers.settings import SECRET
from tidings.providers.settings import expected as expected_value
from tidings.timeline.postgres import pool
from tidings.timeline.postgres.database import VERSION_MIN

pytestmark = [pytest.mark.docs]

API: Any = describe(__version__)


def page(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text("utf-8")


def said(name: str) -> set[str]:
    """The words that a page sets as code."""
    spans = re.findall(r"`([^`\n]+)`", page(name))
    return {word for span in spans for word in re.findall(r"[\w.-]+", span)}


def section(text: str, heading: str) -> str:
    """The part of a page below a heading, up to the next one of its rank."""
    rank = heading.split(maxsplit=1)[0]
    assert f"\n{heading}\n" in text, f"there is no heading {heading}"
    return re.split(rf"^#{{1,{len(rank)}}} ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("path", TABLED, ids=lambda path: path.stem)
def test_derived_tables_are_up_to_date(path: Path) -> None:
    text = path.read_text("utf-8")
    assert rewritten(text) == text, f"docs/reference/{path.name} is out of date: run `make docs`"


def test_every_table_that_a_page_asks_for_ends() -> None:
    for path in TABLED:
        text = path.read_text("utf-8")
        assert len(re.findall("<!-- (?:fields|flags|options|values|tables): ", text)) == text.count("<!-- end -->") > 0


# HTTP


def operations() -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, methods in API["paths"].items() for method in methods]


@pytest.mark.parametrize(("method", "path"), operations())
def test_every_operation_has_its_section(method: str, path: str) -> None:
    text = section(page("http"), f"### `{method} {path}`")
    written_of = API["paths"][path][method.lower()]
    for parameter in written_of.get("parameters", ()):
        everywhere = parameter["in"] != "query"
        assert f"`{parameter['name']}" in (page("http") if everywhere else text) or parameter["in"] == "path"


def test_every_field_is_named() -> None:
    fields = {name for shape in API["components"]["schemas"].values() for name in shape["properties"]}
    named = said("http") | set(re.findall(r'"(\w+)"', page("http")))
    assert fields - named == set()


def test_every_outcome_state_and_problem_is_explained() -> None:
    text = page("http")
    for heading, expected in (
        ("## Outcomes", get_args(OutcomeWord)),
        ("## States", get_args(State)),
        ("## Problems", KINDS),
    ):
        assert [word for word in expected if f"`{word}`" not in section(text, heading)] == []
    for kind, (status, _) in KINDS.items():
        assert f"| `{kind}` | {status} |" in section(text, "## Problems")


# Command line


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for name in COMMANDS:
        parser = build_parser([name])
        commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        yield name, commands.choices[name]


def flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags(below)
        yield from action.option_strings if action.help != argparse.SUPPRESS else ()


@pytest.mark.parametrize(("name", "parser"), list(parsers()), ids=list(COMMANDS))
def test_every_command_has_its_section_with_its_flags(name: str, parser: argparse.ArgumentParser) -> None:
    text = section(page("cli"), f"## `tidings {name}`")
    shared = {"-h", "--help", "--url", "--api-key", "--json"} | ({"--tenant"} if name != "keys" else set())
    like = {"replace": "schedule", "change": "schedule", "notifications": "notify"}.get(
        name
    )  # it has the flags of this one too
    theirs = set() if like is None else set(flags(dict(parsers())[like]))
    own = [flag for flag in flags(parser) if flag not in shared | theirs]
    assert [flag for flag in own if not re.search(rf"{flag}\b", text)] == []


def test_the_changelog_names_every_command() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    listed = section(text, "### Added").split("- The command line: ", 1)[1].split(";", 1)[0]
    assert re.findall(r"`(\w+)`", listed) == list(COMMANDS)


def test_every_exit_code_is_explained() -> None:
    assert [code for code in Exit if f"| {int(code)} |" not in page("cli")] == []


# Python


def test_every_name_of_the_library_is_described() -> None:
    names = {name for name in tidings.__all__ if name != "__version__"}
    names |= {name for name in vars(tidings.Tidings) if not name.startswith("_")}
    names |= set(Options.__annotations__)
    for struct in (tidings.Event, tidings.Outcome, tidings.Record, tidings.Schedule):
        names |= {field.name for field in msgspec.structs.fields(struct)}
    names |= {"late_ms", "text", "json"}
    described = said("python") | {name.removeprefix("tidings.") for name in said("python")}
    assert names - described == set()


# Settings


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
def test_every_setting_has_its_row(option: Option) -> None:
    rows = [line for line in page("configuration").splitlines() if line.startswith(f"| `{option.name}` |")]
    assert len(rows) == 1
    assert f"| `{option.variable}` |" in rows[0]
    assert rows[0].endswith(f"| `{written(option, option.default)}` |")
    assert all(f"`{choice}`" in rows[0] for choice in option.choices)


def test_no_setting_is_described_that_is_not_there() -> None:
    described = re.findall(r"^\| `(\w+\.\w+)` \|", page("configuration"), re.MULTILINE)
    assert described == list(OPTIONS)


@pytest.mark.parametrize("name", sorted(installed()))
def test_every_setting_of_a_provider_has_its_row_and_an_example(name: str, tmp_path: Path) -> None:
    text = section(page("configuration"), f"### `{name}`")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) ?\| .+ \|$", text, re.MULTILINE)
    fields = msgspec.structs.fields(provider_type(name).settings)
    assert [tuple(row) for row in rows] == [(field.name, taken(field.type), default(field)) for field in fields]
    [example] = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "t.toml").write_text(example)
    [table] = load(str(tmp_path / "t.toml"), {}, {}).config.channels
    check_provider(table.provider, table.settings)


def taken(kind: Any) -> str:
    """The type of a setting as the page writes it."""
    words = expected_value(kind)
    if words == SECRET:
        return "secret"
    words = words.removeprefix("a ")
    return ", ".join(f"`{word}`" for word in re.findall(r'"(\w+)"', words)) or words


def default(field: Any) -> str:
    """The default of a setting as the page writes it."""
    if field.required:
        return ""
    value = field.default
    match value:
        case None:
            return "none"
        case "":
            return '`""`'
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case tuple():
            return f"`{list(value)}`"
        case _:
            return f"`{value}`"


def test_every_setting_of_all_channels_has_its_row() -> None:
    before = section(page("configuration"), "## Channels").split("\n### ", 1)[0]
    assert re.findall(r"^\| `(\w+)` \|", before, re.MULTILINE) == list(OWN)


SETTINGS = [block for page in PAGES for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: block.name)
def test_settings_in_the_pages_can_be_loaded(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(block.text, "utf-8")
    assert "shown.toml" in render(load(str(file), {}, {}))


# Facts and metrics


class Joined:
    problem: str | None = None
    failures = lag = rejected = waiting = 0


async def count() -> Count:
    return Count(0, 0, 0)


async def test_every_metric_is_described_with_its_type() -> None:
    worker = Worker(name="node", group="tidings", version=__version__)
    kaspr = KasprMetrics(worker, lambda: None, lambda: None, lambda: True, SystemClock())
    kafka = KafkaMetrics(Joined(), Joined(), lambda: 0, kaspr)
    rendered = (await Metrics(__version__, count, [kafka.lines, DeliveryMetrics().lines]).render()).decode()
    metrics = dict(re.findall(r"^# TYPE (\w+) (\w+)$", rendered, re.MULTILINE))
    metrics = {name: kind for name, kind in metrics.items() if not re.fullmatch(r"kaspr_\w+_total", name)}
    described = re.findall(r"^\| `((?:tidings|kaspr)_\w+)` \| (\w+) \|", page("facts-and-metrics"), re.MULTILINE)
    assert dict(described) == metrics


def test_every_fact_is_described_with_its_fields() -> None:
    text = section(page("facts-and-metrics"), "## Facts")
    for fact in get_args(Fact):
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{fact.__name__}` |")]
        assert [field.name for field in msgspec.structs.fields(fact) if f"`{field.name}`" not in row] == []


def test_every_reason_is_explained() -> None:
    text = page("facts-and-metrics")
    assert [reason for reason in get_args(MissedReason) if f"| `{reason}` |" not in text] == []


def test_the_pages_of_the_fleet_name_the_versions_and_limits_that_hold() -> None:
    pages = [(DOCS / "how-to" / f"{name}.md").read_text("utf-8") for name in ("run-a-fleet", "move-to-postgres")]
    for text in pages:
        assert re.findall(r"PostgreSQL (\d+) or newer", text) == [str(VERSION_MIN)]
    advised = dict(re.findall(r"ALTER ROLE \w+ SET (\w+_timeout) = '(\d+)s'", pages[0]))
    limits = {"statement": pool.STATEMENT_MS, "lock": pool.LOCK_MS, "idle_in_transaction_session": pool.IDLE_MS}
    assert advised == {f"{name}_timeout": str(limit_ms // 1_000) for name, limit_ms in limits.items()}
