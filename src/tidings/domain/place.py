"""An address as one text, so that it can be compared, and as a digest, so that it can be forgotten and still known."""

from hashlib import blake2b

from tidings.domain.address import Device, check_email, check_phone, check_url
from tidings.domain.errors import Invalid
from tidings.domain.rendered import ChannelName

DIGEST_BYTES = 16


def place(channel: ChannelName, to: str | Device) -> str:
    """Addresses that reach the same person are the same text: no mailbox in use tells letters of two cases apart."""
    if isinstance(to, Device):
        return f"{to.platform}:{to.token}"
    return to.lower() if channel == "email" else to


def digest(channel: ChannelName, to: str | Device) -> str:
    """Stands for an address where it must not be read."""
    return blake2b(f"{channel}/{place(channel, to)}".encode(), digest_size=DIGEST_BYTES).hexdigest()


def looks_like(to: str) -> ChannelName:
    """Which channel an address is of, by its looks; a device is written `apns:<token>` or `fcm:<token>`."""
    if to.startswith(("apns:", "fcm:")):
        return "push"
    if to.startswith(("https://", "http://")):
        return "webhook"
    return "email" if "@" in to else "sms"


def check_place(channel: ChannelName, to: str | Device, field: str) -> None:
    """Refuse what is no address of this channel."""
    if channel == "push" or isinstance(to, Device):
        if channel != "push" or not isinstance(to, Device):
            wanted = "give the device as its platform and its token" if channel == "push" else "give a text"
            raise Invalid(field, f"is no address for {channel}: {wanted}")
        return
    match channel:
        case "email":
            check_email(to, field)
        case "sms":
            check_phone(to, field)
        case "webhook":
            check_url(to, field)
        case "in_app":
            raise Invalid(field, "only a user has an inbox: give 'user'")
