"""Tidings holds messages and notifications until their time and releases each one on time, once."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings.config import Config
    from tidings.domain.errors import Invalid, NotOwner, TidingsError
    from tidings.domain.schedules.schedule import Limits, Request
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

_MODULES = {
    "Config": "tidings.config",
    "Limits": "tidings.domain.schedules.schedule",
    "Request": "tidings.domain.schedules.schedule",
    **dict.fromkeys(("Invalid", "NotOwner", "TidingsError"), "tidings.domain.errors"),
    **dict.fromkeys(("Event", "Outcome", "Record", "Schedule", "Tidings", "make_request", "open"), "tidings.library"),
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that the command line starts without the library."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names, including those that are not loaded yet."""
    return sorted({*globals(), *__all__})
