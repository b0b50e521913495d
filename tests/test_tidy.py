"""The habits of this project that no linter checks, as a test (after tigerbeetle's `tidy`).

Each rule is a function from one file to its faults, so that the rules are tested too.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings

ROOT = Path(__file__).resolve().parent.parent
CLOCK = ROOT / "src/tidings/clock.py"

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
CLOCK_READS = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.times",
    "uuid.uuid1",
}

Rule = Callable[[str], Iterator[str]]


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if "__pycache__" not in path.parts)


def faults(rule: Rule, paths: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{fault}" for path in paths for fault in rule(path.read_text("utf-8"))]


# --- the rules ---


def too_long(source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"1: {lines} lines, at most {FILE_LINES_MAX}"


def long_functions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def clock_reads(source: str) -> Iterator[str]:
    """Imports of `time`, readings of today's date, and the event loop's own clock."""
    tree = ast.parse(source)
    imported = dict(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [name for _, name in imports(node)]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node, imported)]
        else:
            continue
        yield from (f"{node.lineno}: {name}" for name in names if reads_clock(name))


def reads_clock(name: str) -> bool:
    return name in CLOCK_READS or name.partition(".")[0] == "time" or name.endswith("loop().time")


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each imported name and what it stands for: `from datetime import date as d` is `d, datetime.date`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, _ = alias.name.partition(".")
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The full name of an expression such as `datetime.now`; what was not imported stays open (`?.now`)."""
    match node:
        case ast.Name(id="loop"):
            return "loop()"
        case ast.Name(id=name):
            return imported.get(name, "?")
        case ast.Attribute(value=value, attr="_loop" | "loop"):
            return f"{dotted(value, imported)}.loop()"
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value, imported)}.{attribute}"
        case ast.Call(func=function):
            return f"{dotted(function, imported)}()"
        case _:
            return "?"


def sleeps(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name == "sleep":
                yield f"{node.lineno}: wait for a signal, a simulated clock, or poll with a deadline"


def unfinished(source: str) -> Iterator[str]:
    for number, line in enumerate(source.splitlines(), start=1):
        if UNFINISHED.search(line):
            yield f"{number}: {line.strip()}"


def vague(path: Path) -> bool:
    return any(word in VAGUE_NAMES for part in path.with_suffix("").parts for word in part.lower().split("_"))


# --- the project keeps them ---


def test_files_are_short() -> None:
    assert faults(too_long, files("src", suffixes=(".py", ".sql"))) == []


def test_functions_fit_a_screen() -> None:
    assert faults(long_functions, files("src")) == []


def test_only_clock_reads_the_clock() -> None:
    assert faults(clock_reads, [path for path in files("src") if path != CLOCK]) == []


def test_tests_do_not_sleep() -> None:
    real_time = {ROOT / "tests/faults", ROOT / "tests/kafka/faults", ROOT / "tests/fleet"}
    assert faults(sleeps, [path for path in files("tests") if real_time.isdisjoint(path.parents)]) == []


def test_modules_are_named_for_what_they_do() -> None:
    relative = [path.relative_to(ROOT) for path in files("src", "tests", "bench")]
    assert [str(path) for path in relative if vague(path)] == []


def test_nothing_is_left_for_later() -> None:
    kinds = (".py", ".sql", ".md", ".toml", ".html", ".css", ".js")
    paths = files("src", "tests", "bench", "docs", suffixes=kinds)
    paths += [path for path in ROOT.iterdir() if path.suffix in kinds or path.name == "Makefile"]
    assert faults(unfinished, [path for path in paths if path != Path(__file__).resolve()]) == []


def test_version_is_said_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == tidings.__version__


# --- and the rules find what they look for ---


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", 1),
        ("import time as t\nt.monotonic()", 2),
        ("from time import time_ns", 1),
        ("from datetime import datetime\ndatetime.now(UTC)", 1),
        ("import datetime as dt\ndt.datetime.utcnow()\ndt.date.today()", 2),
        ("import asyncio\nasyncio.get_running_loop().time()", 1),
        ("def f(loop): return loop.time()", 1),
        ("def f(self): return self._loop.time()", 1),
        ("from datetime import datetime, time\ndatetime.fromisoformat(s).time()", 0),
        ("def f(clock, moment): return clock.now() - moment.time()", 0),
        ("from tidings.clock import Clock", 0),
    ],
)
def test_clock_reads_are_found(source: str, found: int) -> None:
    assert len(list(clock_reads(source))) == found


def test_long_files_and_functions_are_found() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert list(too_long("\n" * FILE_LINES_MAX)) == []
    assert len(list(too_long("\n" * (FILE_LINES_MAX + 1)))) == 1
    assert list(long_functions("def f():\n" + body[len("    pass\n") :])) == []
    assert len(list(long_functions("class C:\n async def f():\n" + body.replace("    ", "  ")))) == 1


def test_sleeps_are_found() -> None:
    assert len(list(sleeps("asyncio.sleep(1)\nsleep(1)\nclock.sleep_until(1)\n'sleep(1)'"))) == 2


def test_unfinished_and_vague_are_found() -> None:
    assert len(list(unfinished("# TODO: later\n# done"))) == 1
    assert vague(Path("src/tidings/dispatch/lane_manager.py"))
    assert not vague(Path("src/tidings/dispatch/lanes.py"))
