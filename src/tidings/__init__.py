"""Tidings holds messages and notifications until their time and releases each one on time, once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.config import Config
    from tidings.domain.errors import Invalid, NotOwner, TidingsError
    from tidings.domain.schedules.request import Limits, Request
    from tidings.library import Event, Outcome, Record, Schedule, Tidings, make_request, open

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Event",
    "Invalid",
    "Limits",
    "NotOwner",
    "Outcome",
    "Record",
    "Request",
    "Schedule",
    "Tidings",
    "TidingsError",
    "__version__",
    "make_request",
    "open",
]

_PLACES = {
    "Config": "tidings.config",
    "Limits": "tidings.domain.schedules.request",
    "Request": "tidings.domain.schedules.request",
    **dict.fromkeys(("Invalid", "NotOwner", "TidingsError"), "tidings.domain.errors"),
    **dict.fromkeys(("Event", "Outcome", "Record", "Schedule", "Tidings", "make_request", "open"), "tidings.library"),
}


def __getattr__(name: str) -> Any:
    """The library, loaded when it is first asked for: the command line starts without it."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """The public names, those that are not loaded yet too."""
    return sorted({*globals(), *__all__})
