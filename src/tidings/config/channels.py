"""The ways out to people, as the file has them: a table `[channels.<name>]` for each, in order of preference.

What a provider wants to be told only that provider knows; it is checked when the channel is opened. Here is what holds
for all of them: which provider it is, how much it takes, and how its receipts are known.
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
BURST_S = 0.25  # without a burst of its own, a rate lets through at once what it lets through in this time

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*/\s*(s|min|h)(?:\s+burst\s+(\d{1,9}))?")
_SECONDS = {"s": 1, "min": 60, "h": 3_600}


class Channel(msgspec.Struct, frozen=True):
    """One way out, and its table as it was written. `settings` are those that its provider understands."""

    name: str
    provider: str
    written: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    rate: Rate | None = None
    tenant_rate: Rate | None = None
    tenant_rates: dict[str, Rate] = {}
    receipts: dict[str, Any] | None = None


OWN = ("provider", "rate", "tenant_rate", "tenant_rates", "receipts")


def read_channels(table: object, path: object, problems: list[str]) -> tuple[Channel, ...]:
    """The channels of a file; what is wrong with one is added to the problems. No value is shown but a rate."""
    if not isinstance(table, dict):
        problems.append(f"{path}: channels is a section: {TABLE_HINT.format(name='smtp')}")
        return ()
    found = []
    for name, content in table.items():
        place = f"{path}: [channels.{name}]"
        if not _NAME.fullmatch(name):
            problems.append(f"{place} is not the name of a channel: {NAME_HINT}")
        elif not isinstance(content, dict):
            problems.append(f"{path}: [channels] {name} is a table: {TABLE_HINT.format(name=name)}")
        else:
            try:
                found.append(_channel(name, content))
            except ValueError as error:
                problems.append(f"{place} {error}")
    return tuple(found)


def _channel(name: str, content: Mapping[str, Any]) -> Channel:
    provider, receipts = content.get("provider", name), content.get("receipts")
    if not isinstance(provider, str):
        raise ValueError('provider is not understood: write the name of one, such as "smtp"')
    if receipts is not None and not isinstance(receipts, dict):
        raise ValueError("receipts is a table: write what they are signed with, as the provider's page says")
    return Channel(
        name,
        provider,
        dict(content),
        {key: value for key, value in content.items() if key not in OWN},
        _rate("rate", content["rate"]) if "rate" in content else None,
        _rate("tenant_rate", content["tenant_rate"]) if "tenant_rate" in content else None,
        _tenant_rates(content.get("tenant_rates", {})),
        receipts,
    )


def _tenant_rates(table: object) -> dict[str, Rate]:
    if not isinstance(table, dict):
        raise ValueError('tenant_rates is a table of tenants, such as {acme = "10/s"}')
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
    """The variables that a file names as places of secrets, wherever in it."""
    match document:
        case {"env": str(name), **rest} if not rest:
            yield name
        case dict():
            for value in document.values():
                yield from secret_variables(value)
        case _:
            pass


def render_channels(channels: Iterable[Channel], origins: Mapping[str, str]) -> Iterator[str]:
    """The tables as they could be written again; of a secret, where it is kept."""
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
