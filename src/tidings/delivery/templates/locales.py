"""Which language to take when the wanted one is not there: the nearest wider one, then the template's own."""

import re
from collections.abc import Collection

from tidings.domain.errors import Invalid

_LOCALE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8}){0,4}")


def check_locale(text: str, field: str) -> str:
    """A language tag in its plain form: `pt_br` is `pt-br`."""
    plain = text.replace("_", "-")
    if not _LOCALE.fullmatch(plain):
        raise Invalid(field, f"{text[:40]!r} is not a language: write one such as en, pt-BR or zh-Hant-TW")
    return plain.lower()


def choose(wanted: str | None, own: str, available: Collection[str]) -> str:
    """The best of what is available (in its plain form); RFC 4647, lookup: subtags are cut off from the end."""
    for start in (wanted, own):
        tag = (start or "").replace("_", "-").lower()
        while tag:
            if tag in available:
                return tag
            tag = tag.rpartition("-")[0]
            if len(tag) > 1 and tag[-2] == "-":  # a single letter only introduces what follows it
                tag = tag[:-2]
    return min(available)
