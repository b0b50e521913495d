"""Segments of a text message: one has up to 160 characters of GSM 7-bit (3GPP TS 23.038), or 70 of UCS-2."""

from typing import Literal

import msgspec

Encoding = Literal["GSM-7", "UCS-2"]

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENDED = frozenset("\f^{}\\[~]|€")  # each needs an escape before it, in the same segment
GSM_ALONE, GSM_PART = 160, 153  # septets; with several segments, each has a header of seven
UCS_ALONE, UCS_PART = 70, 67  # 16-bit units


class Segments(msgspec.Struct, frozen=True, gc=False):
    """The size of a text message; `units` are septets of GSM-7, or 16-bit units of UCS-2."""

    encoding: Encoding
    units: int
    count: int


def segments(text: str) -> Segments:
    """Count as mobile networks do: an escape sequence or a surrogate pair is not split across segments."""
    encoding: Encoding
    if all(character in _BASIC or character in _EXTENDED for character in text):
        encoding, alone, part = "GSM-7", GSM_ALONE, GSM_PART
        widths = [1 if character in _BASIC else 2 for character in text]
    else:
        encoding, alone, part = "UCS-2", UCS_ALONE, UCS_PART
        widths = [1 if ord(character) < 0x10000 else 2 for character in text]
    units = sum(widths)
    return Segments(encoding, units, 1 if units <= alone else _parts(widths, part))


def _parts(widths: list[int], size: int) -> int:
    count, used = 1, 0
    for width in widths:
        if used + width > size:
            count, used = count + 1, 0
        used += width
    return count
