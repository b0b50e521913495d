"""A secret that cannot slip out: it shows as `***` wherever a value is shown, and only `reveal` gives it away."""

from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 4  # a shorter text is no secret, and hiding it would hide ordinary words


class Secret:
    """A text from the environment or from a file. It is neither compared, stored nor written by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not stored")


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """A text of somebody else (a provider's answer, an error) without the secrets that it may repeat."""
    for secret in secrets:
        plain = secret.reveal()
        if len(plain) >= SHORTEST:
            text = text.replace(plain, HIDDEN).replace(quote(plain, safe=""), HIDDEN)
    return text
