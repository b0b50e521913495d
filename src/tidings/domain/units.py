"""Sizes and durations in settings: a number and a unit, parsed and formatted exactly."""

import re

DAY_US = 86_400_000_000

SIZES = {"B": 1}
SIZES |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SPANS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "min": 60_000_000, "h": 3_600_000_000}
SPANS |= {"d": DAY_US, "w": 7 * DAY_US, "y": DAY_US * 1461 // 4}
SIZE_HINT = f'write a number and one of {", ".join(SIZES)}, for example "16 KiB"'
SPAN_HINT = f'write a number and one of {", ".join(SPANS)}, for example "90s" or "7d"'

DIGITS_MAX = 15
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))? ?([A-Za-z]*)")


def parse_size(text: str) -> int:
    """The bytes of a size such as `1 MiB`; the ValueError for anything else says what to write."""
    return _parse(text, SIZES, SIZE_HINT)


def parse_span(text: str) -> int:
    """The microseconds of a duration such as `7d`. A year has 365.25 days; years are rounded up to whole days."""
    us = _parse(text, SPANS, SPAN_HINT)
    return -(-us // DAY_US) * DAY_US if text.endswith("y") else us


def format_size(size: int) -> str:
    """The size in the largest unit that is exact."""
    unit = next(unit for unit in ("TiB", "GiB", "MiB", "KiB", "B") if size % SIZES[unit] == 0 or unit == "B")
    return f"{size // SIZES[unit]} {unit}" if size else "0 B"


def format_span(us: int) -> str:
    """The duration in the largest unit that is exact; in years if `parse_span` returns the same."""
    years = us // SPANS["y"]
    if years and parse_span(f"{years}y") == us:
        return f"{years}y"
    unit = next(unit for unit in ("d", "h", "m", "s", "ms", "us") if us % SPANS[unit] == 0) if us else "s"
    return f"{us // SPANS[unit]}{unit}"


def rough_span(us: int) -> str:
    """A length of time for people, in the largest unit of which it has at least two: `6 years`, `36 hours`."""
    for unit in ("year", "day", "hour", "minute"):
        count = us // SPANS[unit[0]]
        if count >= 2:
            return f"{count} {unit}s"
    seconds = us // SPANS["s"]
    return f"{seconds} second{'' if seconds == 1 else 's'}"


def _parse(text: str, units: dict[str, int], hint: str) -> int:
    found = _PART.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not understood: {hint}")
    whole, fraction, unit = found[1], found[2] or "", found[3]
    if not unit:
        raise ValueError(f"{text!r} has no unit: {hint}")
    if unit not in units:
        same = [known for known in units if known.lower() == unit.lower()]
        guess = f"did you mean {whole} {same[0]}? " if same else ""
        raise ValueError(f"{text!r} has the unknown unit {unit!r}: {guess}{hint}")
    if len(whole) + len(fraction) > DIGITS_MAX:
        raise ValueError(f"{text!r} has more than {DIGITS_MAX} digits: {hint}")
    scale = int("1" + "0" * len(fraction))
    amount, rest = divmod(int(whole + fraction) * units[unit], scale)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of the smallest unit: {hint}")
    return amount
