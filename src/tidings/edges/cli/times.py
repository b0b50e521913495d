"""Times for people; apart from the domain's, whose import alone would double a command's start."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def instant(text: object) -> int | None:
    """The instant of an RFC 3339 text in microseconds, None if it is none."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND


def clock_text(text: str) -> str:
    """`2026-11-20T09:00:00.250000Z` as `2026-11-20 09:00:00.250Z`: nothing but zeros left out."""
    day, _, rest = text.rstrip("Z").partition("T")
    whole, _, fraction = rest.partition(".")
    fraction = fraction.rstrip("0")
    digits = 3 if len(fraction) <= 3 else 6
    return f"{day} {whole}{'.' + fraction.ljust(digits, '0') if fraction else ''}Z"


def relative(us: int) -> str:
    """How far away: `in 5.0 s`, `3 min ago`."""
    if abs(us) < 1_000:
        return "now"
    return f"in {length(us)}" if us > 0 else f"{length(-us)} ago"


def length(us: int) -> str:
    """`850 ms`, `5.0 s`, `1 h 5 min`, `3 d`: the two largest units."""
    if us < 1_000_000:
        return f"{us // 1_000} ms"
    if us < 60_000_000:
        return f"{us / 1_000_000:.1f} s"
    rest = us // 1_000_000
    words: list[str] = []
    for unit, size in _UNITS:
        amount, rest = divmod(rest, size)
        if amount:
            words.append(f"{amount} {unit}")
        elif words:
            break
    return " ".join(words[:2])
