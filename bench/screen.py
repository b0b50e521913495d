"""What is said while a benchmark runs; the result alone goes to standard output."""

import sys


def note(text: str) -> None:
    """Say how far it is."""
    print(text, file=sys.stderr, flush=True)
