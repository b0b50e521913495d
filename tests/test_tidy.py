"""The conventions of this project that no linter checks, as tests (after tigerbeetle's `tidy`).

Each rule is a function from one file, or from a list of paths, to its faults, so that the rules are tested too.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidings
from tests.docs.pages import DOCS, without_blocks

ROOT = Path(__file__).resolve().parent.parent
CLOCK = ROOT / "src/tidings/clock.py"

PYTHON_FILES_MAX = 300  # under src/
FOLDER_FILES_MAX = 15
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
PUBLIC_GERUNDS = ("testing", "test_testing")  # `tidings.testing` is part of the public API
# Files of other projects that the documentation names.
FOREIGN_PATHS = {"kaspr/sensors/prometheus_monitor.py"}
TOP_FOLDERS = {"bench", "docs", "requirements", "src", "tests"}
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
SPAN = re.compile(r"`([^`]+)`")
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
# A file without any of these reads no clock: the others need not be parsed.
CLOCK_WORDS = re.compile(r"^\s*(?:import|from)\b.*\btime\b|\.time\b|\btimes\b|\bdatetime\b|\buuid1\b", re.MULTILINE)
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


def modules(*folders: str) -> list[Path]:
    """The Python files of these folders, as paths from the root."""
    return [path.relative_to(ROOT) for path in files(*folders)]


def faults(rule: Rule, paths: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}:{fault}" for path in paths for fault in rule(path.read_text("utf-8"))]


# --- the rules ---


def too_long(source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"1: {lines} lines, at most {FILE_LINES_MAX}"


def too_many(paths: list[Path]) -> Iterator[str]:
    if len(paths) > PYTHON_FILES_MAX:
        yield f"{len(paths)} Python files, at most {PYTHON_FILES_MAX}: merge what belongs together"


def crowded(paths: list[Path]) -> Iterator[str]:
    for folder, count in sorted(Counter(path.parent for path in paths).items()):
        if count > FOLDER_FILES_MAX:
            yield f"{folder}: {count} Python files, at most {FOLDER_FILES_MAX}"


def gerunds(paths: list[Path]) -> Iterator[str]:
    """Modules named by an activity instead of by a noun."""
    for path in paths:
        if path.stem.endswith("ing") and path.stem not in PUBLIC_GERUNDS:
            yield f"{path}: name it by a noun, not by a word in -ing"


def missing_paths(page: str) -> Iterator[str]:
    """Paths of this repository in inline code that do not exist, such as `src/tidings/clock.py` or `dispatch/lanes.py`.

    The targets of links are checked in `tests/docs/test_links.py`.
    """
    text = without_blocks(page)
    for span in SPAN.finditer(text):
        for word in span[1].split():
            if is_repository_path(word) and not exists(word):
                yield f"{text.count(chr(10), 0, span.start()) + 1}: {word} does not exist"


def is_repository_path(word: str) -> bool:
    """Any Python or SQL file, any path that begins with a folder of ours, and any module of `tests` or `bench`."""
    if word in FOREIGN_PATHS or not PATH.fullmatch(word):
        return False
    first, slash, _ = word.partition("/")
    if slash and (first in TOP_FOLDERS or (ROOT / "src/tidings" / first).is_dir()):
        return True
    return (word.endswith((".py", ".sql")) and word not in {".py", ".sql"}) or word.startswith(("tests.", "bench."))


def exists(word: str) -> bool:
    """Whether it is a path from the root or from `src/tidings`; a module may be named without its suffix."""
    if word.startswith(("tests.", "bench.")):
        word = word.replace(".", "/")
    places = [base / name for base in (ROOT, ROOT / "src/tidings") for name in (word, f"{word}.py")]
    return any(place.exists() for place in places)


def long_functions(source: str) -> Iterator[str]:
    if source.count("\n") < FUNCTION_LINES_MAX:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def clock_reads(source: str) -> Iterator[str]:
    """Imports of `time`, readings of today's date, and the event loop's own clock."""
    if not CLOCK_WORDS.search(source):
        return
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
    if "sleep" not in source:
        return
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


def test_there_are_few_files_and_no_crowded_folder() -> None:
    assert list(too_many(modules("src"))) == []
    assert list(crowded(modules("src"))) == []


def test_files_are_short() -> None:
    assert faults(too_long, files("src", suffixes=(".py", ".sql"))) == []


def test_functions_fit_a_screen() -> None:
    assert faults(long_functions, files("src")) == []


def test_only_clock_reads_the_clock() -> None:
    assert faults(clock_reads, [path for path in files("src") if path != CLOCK]) == []


def test_tests_do_not_sleep() -> None:
    real_time = {ROOT / "tests/faults", ROOT / "tests/kafka/faults", ROOT / "tests/fleet"}
    assert faults(sleeps, [path for path in files("tests") if real_time.isdisjoint(path.parents)]) == []


def test_module_names_are_nouns_and_say_something() -> None:
    relative = [path.relative_to(ROOT) for path in files("src", "tests", "bench")]
    assert [str(path) for path in relative if vague(path)] == []
    assert list(gerunds(modules("src", "tests", "bench"))) == []


def test_paths_named_in_the_documentation_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    assert faults(missing_paths, pages) == []


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


def test_too_many_files_and_crowded_folders_are_found() -> None:
    flat = [Path(f"src/tidings/a/f{number}.py") for number in range(FOLDER_FILES_MAX)]
    assert list(crowded([*flat, Path("src/tidings/b/f.py")])) == []
    assert list(crowded([*flat, Path("src/tidings/a/g.py")])) == ["src/tidings/a: 16 Python files, at most 15"]
    assert list(too_many([Path("f.py")] * PYTHON_FILES_MAX)) == []
    assert len(list(too_many([Path("f.py")] * (PYTHON_FILES_MAX + 1)))) == 1


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("src/tidings/dispatch/releasing.py", 1),
        ("tests/dispatch/test_releasing.py", 1),
        ("src/tidings/dispatch/release.py", 0),
        ("src/tidings/testing.py", 0),
        ("tests/test_testing.py", 0),
    ],
)
def test_gerunds_are_found(path: str, found: int) -> None:
    assert len(list(gerunds([Path(path)]))) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`src/tidings/clock.py`, `tests/contract`, `bench/`, `clock.py`, `dispatch/lanes.py`, `domain/names`", []),
        ("run `.venv/bin/pytest tests/test_tidy.py -k clock` or `python -m tests.sim --seeds 9`", []),
        ("`Europe/Berlin`, `text/csv`, `/v1/schedules`, `requirements/*.txt`, `.sql`, `tidings.deliver`", []),
        ("```sh\ncat `src/gone.py`\n```\n", []),
        ("see\n`src/tidings/gone.py`", ["2: src/tidings/gone.py does not exist"]),
        (
            "`gone.py` and [`dispatch/gone.py`](x.md)",
            ["1: gone.py does not exist", "1: dispatch/gone.py does not exist"],
        ),
        ("`domain/gone`", ["1: domain/gone does not exist"]),
        ("`docs/gone.md`", ["1: docs/gone.md does not exist"]),
        ("`python -m tests.gone`", ["1: tests.gone does not exist"]),
    ],
)
def test_missing_paths_are_found(text: str, found: list[str]) -> None:
    assert list(missing_paths(text)) == found


def test_sleeps_are_found() -> None:
    assert len(list(sleeps("asyncio.sleep(1)\nsleep(1)\nclock.sleep_until(1)\n'sleep(1)'"))) == 2


def test_unfinished_and_vague_are_found() -> None:
    assert len(list(unfinished("# TODO: later\n# done"))) == 1
    assert vague(Path("src/tidings/dispatch/lane_manager.py"))
    assert not vague(Path("src/tidings/dispatch/lanes.py"))
