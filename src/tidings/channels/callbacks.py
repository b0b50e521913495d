"""The callbacks that can be read, each by the key that was configured for its provider."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from tidings.channels.receipts import sendgrid, signed, twilio
from tidings.domain.errors import Invalid
from tidings.domain.notifications.delivery import DeliveryReceipt
from tidings.domain.secret import Secret, read_key, verify
from tidings.ports import Callback


class SendGridReader:
    """Events of SendGrid, by the public key that it shows beside its signed event webhook."""

    bytes_max = sendgrid.BODY_BYTES_MAX

    def __init__(self, verification_key: str) -> None:
        self._key = sendgrid.read_key(verification_key)

    def verify(self, callback: Callback) -> None:
        sendgrid.verify(self._key, callback.headers, callback.body, callback.now_s)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        return sendgrid.read(callback.body)


class TwilioReader:
    """Status callbacks of Twilio, by the account's token. They are signed over the URL that Twilio called:
    `public_url` is how it reaches this server, without a path."""

    bytes_max = twilio.BODY_BYTES_MAX

    def __init__(self, token: Secret, public_url: str) -> None:
        parts = urlsplit(public_url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise Invalid(
                "public_url",
                "is not a URL: write the one by which Twilio reaches this server, such as https://notify.example.com",
            )
        self._token = token
        self._base = public_url.rstrip("/")

    def verify(self, callback: Callback) -> None:
        form = twilio.read_form(callback.body)
        twilio.verify(self._token, self._base + callback.target, form, callback.headers)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        receipt = twilio.read(self._base + callback.target, twilio.read_form(callback.body))
        return [] if receipt is None else [receipt]


class SignedReader:
    """Everybody else: JSON that is signed as Standard Webhooks says. Several secrets, while one replaces another."""

    bytes_max = signed.BODY_BYTES_MAX

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._secrets = tuple(secrets)
        self._keys = [read_key(secret, "secret") for secret in secrets]

    def verify(self, callback: Callback) -> None:
        verify(self._keys, callback.headers, callback.body, callback.now_s)

    def read(self, callback: Callback) -> Sequence[DeliveryReceipt]:
        return [signed.read(self._secrets, callback.headers, callback.body, callback.now_s)]
