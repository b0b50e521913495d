"""The variables and the language of a notification, checked before any template sees them."""

import re
from collections.abc import Collection, Mapping
from math import isfinite

from tidings.domain.errors import Invalid
from tidings.domain.names import encoded

VARIABLES_BYTES_MAX = 64 * 1024
DEPTH_MAX = 8
INTEGER_BITS_MAX = 256


def check_values(variables: Mapping[str, object], field: str = "variables") -> None:
    """Refuse what is no JSON, nested too deeply, or too large altogether."""
    size = 0
    for name, value in variables.items():
        if not isinstance(name, str):
            raise Invalid(field, "have a name that is not a string")
        size += len(name) + _size(value, f"{field}.{name[:60]}", 1)
        if size > VARIABLES_BYTES_MAX:
            _too_large(f"{field}.{name[:60]}")


def _size(value: object, field: str, depth: int) -> int:
    """Bytes of texts, and some for everything else; stops as soon as it is too much."""
    if depth > DEPTH_MAX:
        raise Invalid(field, f"is nested more than {DEPTH_MAX} levels deep")
    match value:
        case str():
            size = len(value) if value.isascii() else len(encoded(value, field))
        case float():
            if not isfinite(value):
                raise Invalid(field, "is infinite or not a number, which JSON cannot express: send a number, or null")
            return 8
        case None | bool():
            return 8
        case int():
            if value.bit_length() > INTEGER_BITS_MAX:
                raise Invalid(field, f"is a number of more than {INTEGER_BITS_MAX} bits: send it as a string")
            return 8
        case list():
            size = _sum(value, field, depth)
        case dict() if all(isinstance(key, str) for key in value):
            size = sum(map(len, value)) + _sum(list(value.values()), field, depth)
        case _:
            raise Invalid(
                field, f"is a {type(value).__name__}: use strings, numbers, booleans, null, lists and objects"
            )
    if size > VARIABLES_BYTES_MAX:
        _too_large(field)
    return size


def _sum(values: list[object], field: str, depth: int) -> int:
    size = 8 * len(values)
    for value in values:
        if size > VARIABLES_BYTES_MAX:
            _too_large(field)
        size += _size(value, field, depth + 1)
    return size


def _too_large(field: str) -> None:
    raise Invalid(field, f"makes all of them larger than {VARIABLES_BYTES_MAX} bytes: send a link instead")


_LOCALE = re.compile(r"[A-Za-z]{2,8}(?:-[A-Za-z0-9]{1,8}){0,4}")


def check_locale(text: str, field: str) -> str:
    """A language tag in its plain form: `pt_br` is `pt-br`."""
    plain = text.replace("_", "-")
    if not _LOCALE.fullmatch(plain):
        raise Invalid(field, f"{text[:40]!r} is not a language: write one such as en, pt-BR or zh-Hant-TW")
    return plain.lower()


def choose(wanted: str | None, own: str, available: Collection[str]) -> str:
    """The best of what is available (in its plain form); RFC 4647, lookup: subtags are cut off from the end."""
    if wanted is not None and wanted in available:
        return wanted
    for start in (wanted, own):
        tag = (start or "").replace("_", "-").lower()
        while tag:
            if tag in available:
                return tag
            tag = tag.rpartition("-")[0]
            if len(tag) > 1 and tag[-2] == "-":  # a single letter only introduces what follows it
                tag = tag[:-2]
    return min(available)
