"""The documentation uses the words of its glossary."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, prose

pytestmark = [pytest.mark.docs]

GLOSSARY = DOCS / "glossary.md"
LINKED_FROM = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", DOCS / "index.md")

_SPAN = re.compile(r"`[^`]*`")
_TARGET = re.compile(r"\]\([^)\s]*\)")
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def banned() -> dict[str, str]:
    """Each word of the glossary's table `Use, not`, and what to write instead."""
    _, _, section = GLOSSARY.read_text("utf-8").partition("\n## Use, not\n")
    rows = [(use, words) for use, words in _ROW.findall(section) if use != "use"]
    return {word: use for use, words in rows for word in words.split(", ")}


def faults(text: str, words: dict[str, str]) -> Iterator[str]:
    """Where banned words occur outside code and outside the targets of links."""
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    readable = _TARGET.sub("]", _SPAN.sub(lambda span: "\n" * span[0].count("\n"), text))
    for number, line in enumerate(readable.splitlines(), start=1):
        for found in pattern.findall(line):
            yield f"{number}: {found}: write {words[found.lower()]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != GLOSSARY], ids=lambda page: str(page.name))
def test_pages_use_the_words_of_the_glossary(page: Path) -> None:
    assert list(faults(prose(page), banned())) == []


def test_a_banned_word_is_found_in_prose_and_not_in_code() -> None:
    words = {"her": "their", "cabinet": "table"}
    assert list(faults("At her\nHer `cabinet`, [x](cabinet.md), others", words)) == [
        "1: her: write their",
        "2: Her: write their",
    ]


def test_the_glossary_bans_words_and_is_linked() -> None:
    assert {"wishes", "she", "errand", "cabinet", "standing"} <= set(banned())
    assert all("glossary.md" in page.read_text("utf-8") for page in LINKED_FROM)


def test_each_term_is_defined_once() -> None:
    terms = re.findall(r"^\| (\*\*.+?) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    names = [name for term in terms for name in re.findall(r"\*\*(.+?)\*\*", term)]
    assert len(names) > 60
    assert sorted(names) == sorted(set(names))
