"""Which test files `-m` leaves out as a whole. Their text shows it, so that they need not be imported."""

import re

# Each test with one of these markers has it written in its own file. `slow` also comes with a folder or a store.
WRITTEN_MARKERS = frozenset({"kill", "timed", "long", "bench"})

_FILE_MARKERS = re.compile(r"^pytestmark = (?:\[\n(?: .*\n)*\]|.*)", re.MULTILINE)
_MARKER = re.compile(r"\bpytest\.mark\.(\w+)")


def leaves_out(expression: str, source: str) -> bool:
    """Whether `-m expression` selects no test of a file with this source; False if its text does not show that.

    Only expressions such as `slow and not kill` are understood.
    """
    written = set(_MARKER.findall(source))
    of_all = {name for part in _FILE_MARKERS.findall(source) for name in _MARKER.findall(part)}
    terms = expression.split(" and ")
    if not all(term.removeprefix("not ").isidentifier() for term in terms):
        return False
    unwanted = {term.removeprefix("not ") for term in terms if term.startswith("not ")}
    wanted = set(terms) & WRITTEN_MARKERS
    return bool(unwanted & of_all or wanted - written)
