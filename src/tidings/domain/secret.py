"""Secrets, which print as `***`, and the signatures of Standard Webhooks that are made with them."""

from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import quote

HIDDEN = "***"
SHORTEST = 4  # shorter texts are not hidden: they occur in ordinary words


class Secret:
    """A secret from the environment or from a file. It prints as `***` and cannot be pickled; `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret itself, for the one place that needs it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def hide(text: str, secrets: Iterable[Secret]) -> str:
    """A foreign text (a provider's response, an error) with the secrets in it replaced by `***`."""
    for secret in secrets:
        plain = secret.reveal()
        if len(plain) >= SHORTEST:
            text = text.replace(plain, HIDDEN).replace(quote(plain, safe=""), HIDDEN)
    return text
