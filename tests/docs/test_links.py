"""Every link inside the documentation leads somewhere, and every page is linked."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, prose

pytestmark = [pytest.mark.docs]

LINE_CHARS_MAX = 120
PARTS = ["Context", "Decision", "Why", "Consequences"]

_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`[^`\n]*`")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    """The targets of the links of a page, without those to other sites."""
    for target in _LINK.findall(prose(page)):
        if not target.startswith(("https://", "http://")):
            yield target


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    headings = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.replace(" ", "-") for heading in headings}


def destination(page: Path, target: str) -> tuple[Path, str]:
    path, _, anchor = target.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, anchor = destination(page, target)
        assert path.exists(), target
        assert path.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(path), target


def test_every_page_is_linked_from_the_index() -> None:
    indexes = [DOCS / "index.md", DOCS / "decisions/README.md"]
    linked = {destination(index, target)[0] for index in indexes for target in links(index)}
    assert [page for page in sorted(DOCS.rglob("*.md")) if page not in linked] == [DOCS / "index.md"]


def test_decisions_are_numbered_without_a_gap_and_have_their_parts() -> None:
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        text = record.read_text("utf-8")
        assert text.startswith(f"# {record.name[:4]}: ")
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == PARTS, record.name


def test_pictures_are_valid_and_have_a_title_and_description() -> None:
    for picture in DOCS.rglob("*.svg"):
        root = ElementTree.fromstring(picture.read_text("utf-8"))
        named = {element.tag.rpartition("}")[2] for element in root}
        assert {"title", "desc"} <= named, picture.name


def test_lines_are_short_enough_to_review() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in enumerate(prose(page).splitlines(), start=1)
        if len(line) > LINE_CHARS_MAX and not line.startswith(("|", "!["))
    ]
    assert long == []
