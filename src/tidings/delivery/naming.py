"""The ids under which deliveries are sent: the same in every attempt, and no other tenant's."""

import re
from hashlib import blake2b
from urllib.parse import quote, unquote

from tidings.domain.names import DEFAULT_TENANT
from tidings.domain.notifications.message import ID_BYTES_MAX

_PLAIN = re.compile(r"[!-$&-~]+")  # without the percent sign, so that it can be read back


def message_id(tenant: str, name: str, device: int = 0) -> str:
    """A delivery's name, with the number of a device, and its tenant unless that is the default one: receivers that
    know ids again, and providers' receipts, know no tenants. What a provider could not take is written otherwise.

    A name ends with a number or a channel behind a slash. Where somebody chose one that could be taken for another
    tenant's, it says its own tenant too.
    """
    text = f"{name}/{device}" if device else name
    if not _PLAIN.fullmatch(text):
        text = quote(text)
    if tenant != DEFAULT_TENANT or "@" in name.rpartition("/")[2]:
        text = f"{text}@{tenant}"
    return text if len(text) <= ID_BYTES_MAX else blake2b(text.encode(), digest_size=32).hexdigest()


def named_by(tenant: str, message: str) -> str | None:
    """The delivery of this tenant that was sent under an id; None if it was not one of this tenant's."""
    end = f"@{tenant}"
    if message.endswith(end):
        return unquote(message.removesuffix(end))
    return unquote(message) if tenant == DEFAULT_TENANT and "@" not in message.rpartition("/")[2] else None
