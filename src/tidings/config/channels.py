"""The tables `[channels.<name>]` of the configuration file, one for each provider, in order of preference.

This module reads the keys that every provider has: which provider it is, its rate limits, and how its receipts are
verified. All other keys are the provider's own settings, which are checked when it is opened.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidings.config.checks import check_tenant
from tidings.domain.notifications.rate_limit import Rate

NAME_HINT = "use 1 to 50 letters, digits, '_' and '-'"
RATE_HINT = 'write how many in which time, such as "100/s", "30/min" or "5000/h", and "100/s burst 20" for 20 at once'
TABLE_HINT = "write [channels.{name}] and its settings below"
ONLY_FILE = 'channels are set in the file: [channels.smtp] and its settings below, secrets as {env = "NAME"}'
BURST_S = 0.25  # the default burst of a rate is what it allows in this time

OWN = ("provider", "rate", "tenant_rate", "tenant_rates", "receipts")  # keys that every provider has

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*/\s*(s|min|h)(?:\s+burst\s+(\d{1,9}))?")
_SECONDS = {"s": 1, "min": 60, "h": 3_600}


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """One configured provider. `written` is its whole table, `settings` the keys that are the provider's own."""

    name: str
    provider: str
    written: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    rate: Rate | None = None
    tenant_rate: Rate | None = None
    tenant_rates: dict[str, Rate] = {}
    receipts: dict[str, Any] | None = None


def read_channels(table: object, path: object, problems: list[str]) -> tuple[Channel, ...]:
    """The channels of a file. Errors are added to `problems`; of values they show only rates: others may be secret."""
    if not isinstance(table, dict):
        problems.append(f"{path}: channels must be a section: {TABLE_HINT.format(name='smtp')}")
        return ()
    found = []
    for name, content in table.items():
        place = f"{path}: [channels.{name}]"
        if not _NAME.fullmatch(name):
            problems.append(f"{place} is not a valid name of a channel: {NAME_HINT}")
        elif not isinstance(content, dict):
            problems.append(f"{path}: [channels] {name} must be a table: {TABLE_HINT.format(name=name)}")
        else:
            try:
                found.append(_channel(name, content))
            except ValueError as error:
                problems.append(f"{place} {error}")
    return tuple(found)


def _channel(name: str, content: Mapping[str, Any]) -> Channel:
    provider, receipts = content.get("provider", name), content.get("receipts")
    if not isinstance(provider, str):
        raise ValueError('provider must be the name of a provider, such as "smtp"')
    if receipts is not None and not isinstance(receipts, dict):
        raise ValueError("receipts must be a table: write how they are signed (docs/reference/configuration.md)")
    return Channel(
        name=name,
        provider=provider,
        written=dict(content),
        settings={key: value for key, value in content.items() if key not in OWN},
        rate=_rate("rate", content["rate"]) if "rate" in content else None,
        tenant_rate=_rate("tenant_rate", content["tenant_rate"]) if "tenant_rate" in content else None,
        tenant_rates=_tenant_rates(content.get("tenant_rates", {})),
        receipts=receipts,
    )


def _tenant_rates(table: object) -> dict[str, Rate]:
    if not isinstance(table, dict):
        raise ValueError('tenant_rates must be a table of tenants, such as {acme = "10/s"}')
    return {check_tenant(tenant): _rate(f"tenant_rates.{tenant}", text) for tenant, text in table.items()}


def _rate(key: str, text: object) -> Rate:
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{key}: {text!r} is not a rate: {RATE_HINT}")
    per_s = float(found[1]) / _SECONDS[found[2]]
    burst = max(1, int(per_s * BURST_S)) if found[3] is None else int(found[3])
    try:
        return Rate(per_s, burst)
    except ValueError as error:
        raise ValueError(f"{key}: {text!r}: {error}") from None


def secret_variables(document: object) -> Iterator[str]:
    """The environment variables that a file names as holding secrets (`{env = "NAME"}`), anywhere in it."""
    match document:
        case {"env": str(name), **rest} if not rest:
            yield name
        case dict():
            for value in document.values():
                yield from secret_variables(value)
        case _:
            pass


def render_channels(channels: Iterable[Channel], origins: Mapping[str, str]) -> Iterator[str]:
    """The tables as they could be written again. They never hold a secret itself, only where it is kept."""
    for channel in channels:
        yield ""
        yield f"[channels.{channel.name}]"
        for key, value in channel.written.items():
            yield f"{f'{key} = {_toml(value)}':<40} # {origins[f'channels.{channel.name}']}"


def _toml(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return f"{{{', '.join(f'{_toml(name)} = {_toml(item)}' for name, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case _:
            return str(value)
