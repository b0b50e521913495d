"""What can be an address, by channel."""

import pytest

from tidings.domain.address import Device, check_email, check_phone, check_url
from tidings.domain.errors import Invalid


@pytest.mark.parametrize(
    "text",
    [
        "ada@example.com",
        "a.b+c@sub.example.co.uk",
        "o'neil@example.com",
        "ada@localhost",
        "dà@bücher.example",
        "x_y-z@xn--bcher-kva.example",
        "a" * 64 + "@example.com",
    ],
)
def test_emails(text: str) -> None:
    assert check_email(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ada",
        "@example.com",
        "ada@",
        "ada@@example.com",
        "a@b@example.com",
        "ada @example.com",
        "ada@example..com",
        ".ada@example.com",
        "ada.@example.com",
        "a..b@example.com",
        "ada@-example.com",
        "ada@example.com, eve@example.com",
        "Ada <ada@example.com>",
        "<ada@example.com>",
        '"ada"@example.com',
        "ada@[127.0.0.1]",
        "ada@example.com\nBcc: eve@example.com",
        "ada\r@example.com",
        "ada@example.com\x00",
        "ada(comment)@example.com",
        "a" * 65 + "@example.com",
        "ada@" + "x" * 64 + ".com",
        "ada@" + "x." * 130 + "com",
    ],
)
def test_what_is_no_email(text: str) -> None:
    with pytest.raises(Invalid):
        check_email(text)


@pytest.mark.parametrize("text", ["+15550100", "+4915112345678", "+123456789012345"])
def test_phones(text: str) -> None:
    assert check_phone(text) == text


@pytest.mark.parametrize(
    "text", ["", "15550100", "+05550100", "+1 555 0100", "+1234567890123456", "+1555010\n", "+٣٣٣٣٣٣٣٣"]
)
def test_what_is_no_phone(text: str) -> None:
    with pytest.raises(Invalid):
        check_phone(text)


def test_devices() -> None:
    Device("apns", "0F" * 32)
    Device("fcm", "cXyz_1-2:APA91b" + "x" * 140)
    for platform, token in [
        ("apns", "xyz"),
        ("apns", "0f" * 31),
        ("apns", "../../3/device"),
        ("fcm", "a b" * 20),
        ("fcm", ""),
    ]:
        with pytest.raises(Invalid):
            Device(platform, token)  # type: ignore[arg-type]


def test_urls() -> None:
    assert check_url("https://example.com/hook?x=1").hostname == "example.com"
    assert check_url("http://sub.example.com:8080").port == 8080
    assert check_url("https://[2606:2800:220:1::1]:8443/").hostname == "2606:2800:220:1::1"
    with pytest.raises(Invalid, match="longer than"):
        check_url("https://example.com/" + "x" * 2048)
