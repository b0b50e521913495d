"""Every command and program of the documentation runs, and prints what the page says."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, Block, blocks, running_pages
from tests.docs.terminal import Played, masked, play, starts, waits

AT_ONCE = 3  # most of a page's time is spent waiting for a message

pytestmark = [pytest.mark.docs]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def sessions(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Path, Future[Played]]]:
    """The pages that were asked for, some at a time, the longest first."""
    items = [item for item in request.session.items if "sessions" in getattr(item, "fixturenames", ())]
    pages = [Path(str(item.callspec.params["page"])) for item in items if isinstance(item, pytest.Function)]
    pages.sort(key=lambda page: -len(blocks(page)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {page: pool.submit(play, page, tmp_path_factory.mktemp(page.stem)) for page in pages}


@pytest.mark.slow
@pytest.mark.parametrize("page", list(running_pages()), ids=name)
def test_a_page_prints_what_it_shows(page: Path, sessions: dict[Path, Future[Played]]) -> None:
    played = sessions[page].result()
    for number, block in enumerate(played.page):
        if block.runs:
            check(block, played.printed.get(number), played.codes.get(number, []), played.log)


def check(block: Block, printed: str | None, codes: list[int], log: str) -> None:
    assert printed is not None, f"{block.name}: the session ended before it\n{log}"
    assert codes == ([block.code] if block.code else []), f"{block.name}: codes {codes}\n{printed}\n{log}"
    if block.printed is None:
        return
    shown, seen = masked(block.printed), masked(printed)
    if block.note == "any order":
        shown.sort()
        seen.sort()
    assert seen == shown, f"{block.name}: printed\n{printed}\n{log}"


def test_few_blocks_are_left_out_and_each_says_why() -> None:
    shown = [block for page in PAGES for block in blocks(page) if block.language in {"sh", "python"}]
    left_out = [block for block in shown if not block.runs]
    assert all(block.note.removeprefix("not run: ") != block.note for block in left_out)
    assert len(left_out) * 5 <= len(shown), [block.name for block in left_out]


def test_the_first_screen_has_the_commands() -> None:
    first_screen = (ROOT / "README.md").read_text().split("```python")[0]
    for command in (
        "git clone",
        "make run",
        """.venv/bin/tidings schedule --to greetings --at +5s '{"hello":"world"}'""",
        ".venv/bin/tidings tail greetings",
    ):
        assert command in first_screen


def test_the_readme_sends_a_notification() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in (
        "tidings users put ada --email ada@example.com --phone +15550100 --zone America/New_York --quiet 22:00-07:00",
        "tidings templates put reminder --channel email --subject 'Hi {{ name }}' --body @reminder.liquid",
        "tidings notify ada --template reminder --var name=Ada --at 'tomorrow 09:00'",
        "tidings deliveries --user ada",
        "tidings inbox ada --follow",
        "docs/tutorial-notifications.md",
        "docs/how-to/users-and-templates.md",
    ):
        assert command in " ".join(readme.replace("\\\n", "").split())


def test_the_tutorials_can_be_pasted() -> None:
    started = [block for page in (DOCS / "tutorial.md", DOCS / "tutorial-notifications.md") for block in blocks(page)]
    started = [block for block in started if block.runs and starts(block)]
    assert len(started) == 3
    assert [block.name for block in started if not waits(block)] == []


def test_only_values_that_vary_are_masked() -> None:
    line = "scheduled tid_000000000000000117947837088854981 to x, due 2026-11-20 09:00:05.104318Z (in 5.0 s)"
    assert masked(line) == ["scheduled TID to x, due TIME (THEN)"]
    assert masked("2026-11-20 09:00:05Z   1,200.5 ms  [k]  hello") == ["TIME N ms [k] hello"]
    assert masked("3 rejected, 2 scheduled") != masked("3 rejected, 1 scheduled")
