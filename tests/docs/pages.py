"""The pages of the documentation, and the fenced blocks in them.

A comment right before a block says what is special about it: `<!-- not run: why -->`, `<!-- exit 4 -->` for a block in
which a command ends like that, `<!-- any order -->` where the order of the output lines is not promised. A `text` or
`json` block right behind one that runs is what it prints.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

RUN = ("sh", "python")
PRINTED = ("text", "json")
SHOWN = (*RUN, *PRINTED, "toml", "yaml", "sql", "")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- ([^>]*) -->\s*\Z")
_EXIT = re.compile(r"exit (\d+)")


@dataclass(frozen=True)
class Block:
    """One fenced block, and what the page says that it prints."""

    page: Path
    line: int
    language: str
    text: str
    note: str = ""
    printed: str | None = None

    @property
    def name(self) -> str:
        """Where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether the test runs it."""
        return self.language in RUN and not self.note.startswith("not run")

    @property
    def code(self) -> int:
        """How its last failing command ends, 0 if none fails."""
        found = _EXIT.fullmatch(self.note)
        return int(found[1]) if found else 0


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, what they print attached to them."""
    text = page.read_text("utf-8")
    found: list[Block] = []
    end = 0
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        between = text[end : fence.start()]
        language, body = fence[1], fence[2]
        assert language in SHOWN, f"{page.name}:{line}: {language} is not a language that these pages use"
        if found and language in PRINTED and not between.strip() and found[-1].runs and found[-1].printed is None:
            before = found.pop()
            found.append(Block(page, before.line, before.language, before.text, before.note, body))
        else:
            note = _NOTE.search(between)
            found.append(Block(page, line, language, body, note[1] if note else ""))
        end = fence.end()
    return found


def running_pages() -> Iterator[Path]:
    """The pages with something to run."""
    for page in PAGES:
        if any(block.runs for block in blocks(page)):
            yield page


def prose(page: Path) -> str:
    """A page without its blocks; every line keeps its number."""
    return without_blocks(page.read_text("utf-8"))


def without_blocks(text: str) -> str:
    """The text of a page without its blocks; every line keeps its number."""
    return _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
