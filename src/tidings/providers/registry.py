"""The installed kinds of providers, found by their entry points, and opened by name.

Importing a provider takes time and may need packages that are not installed: only the kinds that a configuration names
are loaded.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points
from typing import Any

from tidings.domain.errors import Invalid
from tidings.ports import Provider, ProviderContext, ProviderType, ReceiptType
from tidings.ports.provider import ENTRY_POINTS
from tidings.providers.settings import check_settings, read_settings
from tidings.providers.signed_receipts import RECEIPTS as SIGNED

PACKAGE = "tidings"
RENAMED = {"outbox": "files"}  # the kinds of version 0.1 that have another name now

logger = logging.getLogger("tidings.providers")


def current_name(kind: str) -> str:
    """The name of a kind of provider; an old name is still accepted, and logged once."""
    if kind in RENAMED:
        _warn_of_old_name(kind)
    return RENAMED.get(kind, kind)


@cache
def _warn_of_old_name(kind: str) -> None:
    new = RENAMED[kind]
    logger.warning(
        'the provider %s is now called %s: write provider = "%s" in its table of the configuration', kind, new, new
    )


def installed() -> dict[str, EntryPoint]:
    """All installed kinds by name, without loading them. Refuses a name that two packages claim."""
    return _unambiguous(entry_points(group=ENTRY_POINTS))


def provider_type(kind: str) -> ProviderType:
    """The type of a kind of provider, loaded; `Invalid` if it is not installed.

    Other packages are searched only for kinds that do not come with Tidings, because that reads the metadata of every
    installed package.
    """
    name = current_name(kind)
    point = _unambiguous(_built_in()).get(name) or installed().get(name)
    if point is None:
        raise Invalid(
            "provider", f"{kind!r} is not installed: available are {', '.join(sorted(installed())) or 'none'}"
        )
    try:
        found = point.load()
    except ModuleNotFoundError as error:
        raise Invalid("provider", f"{kind} needs {error.name}, which is not installed") from error
    except Exception as error:  # importing a package runs its code, which can raise anything
        cause = str(error) or type(error).__name__
        raise Invalid("provider", f"{point.value} cannot be loaded: {cause}") from error
    if not isinstance(found, ProviderType):
        raise Invalid("provider", f"{point.value} is not a tidings.ports.ProviderType")
    return found


def receipt_type(kind: str) -> ReceiptType:
    """The receipts of a kind of provider; those signed by Standard Webhooks unless it has its own."""
    return provider_type(kind).receipts or SIGNED


def open_provider(kind: str, settings: Mapping[str, Any], context: ProviderContext) -> Provider:
    """A provider that is ready to send; `Invalid` names what is wrong with its settings."""
    found = provider_type(kind)
    return found.open(read_settings(found.settings, settings), context)


def check_provider(kind: str, settings: Mapping[str, Any]) -> None:
    """Refuse what is wrong with a provider's settings, without reading a secret."""
    check_settings(provider_type(kind).settings, settings)


def _built_in() -> list[EntryPoint]:
    """The entry points of Tidings itself; none if it was not installed, but only put on the path."""
    try:
        return list(Distribution.from_name(PACKAGE).entry_points.select(group=ENTRY_POINTS))
    except PackageNotFoundError:
        return []


def _unambiguous(points: Iterable[EntryPoint]) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for point in points:
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise Invalid("provider", f"{point.name!r} is claimed by {other.value} and by {point.value}: remove one")
    return found
