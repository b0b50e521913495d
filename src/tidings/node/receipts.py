"""How the callbacks of providers are known: `[channels.<name>.receipts]`, by what kind of provider it is."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tidings.channels.callbacks import SendGridReader, SignedReader, TwilioReader
from tidings.channels.loading import check_places, read_settings
from tidings.config import Config
from tidings.config.channels import Channel as Table
from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret
from tidings.node.tables import named
from tidings.ports import ReceiptReader


class SendGrid(msgspec.Struct, frozen=True):
    """The key that SendGrid shows beside its signed event webhook; it is no secret."""

    verification_key: str


class Twilio(msgspec.Struct, frozen=True):
    """The account's token, which signs callbacks; it is the channel's own unless that sends with an API key."""

    token: Secret


class Signed(msgspec.Struct, frozen=True):
    """Everybody else signs as Standard Webhooks says, with a secret, or an older one while it is changed."""

    secret: Secret
    older_secret: Secret | None = None


KINDS: dict[str, type[msgspec.Struct]] = {"sendgrid": SendGrid, "twilio": Twilio}


def check_receipts(table: Table) -> None:
    """Refuse what can be told without reading a secret."""
    if table.receipts is not None:
        with named(f"{table.name}.receipts"):
            check_places(KINDS.get(table.provider, Signed), _given(table))


def readers_of(config: Config) -> dict[str, ReceiptReader]:
    """Who reads the callbacks of each channel that has any, by its name."""
    readers = {}
    for table in config.channels:
        if table.receipts is not None:
            with named(f"{table.name}.receipts"):
                readers[table.name] = _reader(table, config.delivery.public_url)
    return readers


def callback_url(table: Table, public_url: str | None) -> str | None:
    """Where a provider that must be told calls us with what became of a message."""
    return None if table.receipts is None or public_url is None else f"{public_url}/receipts/{table.name}"


def _reader(table: Table, public_url: str | None) -> ReceiptReader:
    match read_settings(KINDS.get(table.provider, Signed), _given(table)):
        case SendGrid(verification_key):
            return SendGridReader(verification_key)
        case Twilio(token):
            if public_url is None:
                raise Invalid("token", "Twilio signs the URL that it calls: set delivery.public_url too")
            return TwilioReader(token, public_url)
        case Signed(secret, older):
            return SignedReader([secret, *([older] if older is not None else [])])
        case other:
            raise AssertionError(f"no reader for {type(other).__name__}")


def _given(table: Table) -> Mapping[str, Any]:
    receipts = table.receipts or {}
    if table.provider == "twilio" and "key" not in table.settings and "token" in table.settings:
        return {"token": table.settings["token"], **receipts}
    return receipts
