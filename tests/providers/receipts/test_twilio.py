"""Twilio's status callbacks: the example of its documentation, and what each status means."""

import hashlib
import hmac
from base64 import b64encode
from urllib.parse import urlencode

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.secret import Secret
from tidings.providers.sms.twilio import SIGNATURE, read, read_form, verify

# The example of Twilio's page on validating requests.
TOKEN = Secret("12345")
URL = "https://mycompany.com/myapp.php?foo=1&bar=2"
FORM = [
    ("CallSid", "CA1234567890ABCDE"),
    ("Caller", "+14158675309"),
    ("Digits", "1234"),
    ("From", "+14158675309"),
    ("To", "+18005551212"),
]
HEADERS = {SIGNATURE: "RSOYDt4T1cUTdK1PDd93/VVr8B8="}


def test_the_published_example_is_twilios() -> None:
    verify(TOKEN, URL, FORM, HEADERS)
    verify(TOKEN, URL, list(reversed(FORM)), HEADERS)
    verify(TOKEN, URL.replace(".com/", ".com:443/"), FORM, HEADERS)


@pytest.mark.parametrize(
    ("url", "form", "headers"),
    [
        (URL + "3", FORM, HEADERS),
        (URL.replace("https", "http"), FORM, HEADERS),
        (URL, FORM[1:], HEADERS),
        (URL, [*FORM, ("X", "")], HEADERS),
        (URL, [*FORM[:-1], ("To", "+1")], HEADERS),
        (URL, FORM, {SIGNATURE: ""}),
        (URL, FORM, {SIGNATURE: "é"}),
        (URL, FORM, {}),
    ],
)
def test_anything_else_is_refused(url: str, form: list[tuple[str, str]], headers: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        verify(TOKEN, url, form, headers)
    with pytest.raises(Invalid):
        verify(Secret("54321"), URL, FORM, HEADERS)


@pytest.mark.parametrize(
    ("status", "code", "state", "suppress"),
    [
        ("delivered", "", "delivered", False),
        ("read", "", "delivered", False),
        ("undelivered", "30003", "bounced", False),
        ("undelivered", "30005", "bounced", True),
        ("undelivered", "30006", "bounced", True),
        ("failed", "30007", "failed", False),
        ("failed", "21610", "unsubscribed", True),
        ("failed", "what?", "failed", False),
        ("sent", "", None, False),
        ("queued", "", None, False),
        ("", "", None, False),
    ],
)
def test_what_statuses_mean(status: str, code: str, state: str | None, suppress: bool) -> None:
    fields = {"MessageSid": "SM1", "MessageStatus": status, "To": "+15550100", "ErrorCode": code, "SmsSid": "SM1"}
    url = "https://t.example/v1/receipts/twilio?id=n-1%2F1%2F1"
    form = read_form(urlencode(fields).encode())
    signed = url + "".join(name + fields[name] for name in sorted(fields))
    signature = b64encode(hmac.digest(b"12345", signed.encode(), hashlib.sha1)).decode()
    verify(TOKEN, url, form, {SIGNATURE: signature})
    receipt = read(url, form)
    if state is None:
        assert receipt is None
    else:
        assert receipt is not None
        assert (receipt.state, receipt.suppress, receipt.provider_id) == (state, suppress, "SM1")
        assert (receipt.message, receipt.address) == ("n-1/1/1", "+15550100")


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=1&" * 300, b"x" * 70_000])
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        read_form(body)
