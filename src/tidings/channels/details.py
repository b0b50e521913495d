"""Foreign texts, made fit for a log and for `explain`."""

from collections.abc import Iterable

from tidings.domain.secret import Secret, hide

DETAIL_CHARACTERS_MAX = 300


def shortened(text: str, secrets: Iterable[Secret] = ()) -> str:
    """A foreign text fit for a log: one line, bounded, without our secrets."""
    line = " ".join("".join(c if c.isprintable() else " " for c in hide(text, secrets)).split())
    return line if len(line) <= DETAIL_CHARACTERS_MAX else line[: DETAIL_CHARACTERS_MAX - 3] + "..."
