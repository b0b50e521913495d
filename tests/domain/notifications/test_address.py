"""Valid and invalid addresses by channel."""

import sys
import unicodedata

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import (
    Device,
    check_email,
    check_line,
    check_phone,
    check_url,
    url_origin,
)


def is_line(text: str) -> bool:
    try:
        return check_line(text, "subject") == text
    except Invalid:
        return False


def test_a_line_has_every_character_but_control_characters_line_breaks_and_surrogates() -> None:
    refused = {"Cc", "Cs", "Zl", "Zp"}
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        is_control_above_ascii = 0x80 <= number <= 0x9F and character != "\x85"  # accepted: no mail program obeys them
        assert is_line(character) == (unicodedata.category(character) not in refused or is_control_above_ascii)


@pytest.mark.parametrize(
    "text",
    [
        "ada@example.com",
        "a.b+c@sub.example.co.uk",
        "o'neil@example.com",
        "ada@localhost",
        "dà@bücher.example",
        "x_y-z@xn--bcher-kva.example",
        "ada@straße.de",
        "ada@例え。jp",
        "ada@a_b.example",
        "ada@" + "x" * 63 + ".com",
        "a" * 64 + "@example.com",
    ],
)
def test_valid_email_addresses(text: str) -> None:
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
        "ada@exa mple",
        "ada@-.de",
        "ada@example-.com",
        "ada@xn--a",
        "ada@xn--",
        "ada@xn--a-ecp.ru",  # decodes to a character that no domain may have
        "ada@ⅷ☃.com",
        "ada@" + "ü" * 60 + ".de",  # longer than 63 bytes once it is encoded
        "ada@" + ".".join(["ü" * 20] * 12) + ".de",  # longer than 253 bytes once it is encoded
        "\ud800@example.com",
        "ada@\ud800.com",
    ],
)
def test_invalid_email_addresses_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        check_email(text)


@pytest.mark.parametrize("text", ["+15550100", "+4915112345678", "+123456789012345"])
def test_valid_phone_numbers(text: str) -> None:
    assert check_phone(text) == text


@pytest.mark.parametrize(
    "text", ["", "15550100", "+05550100", "+1 555 0100", "+1234567890123456", "+1555010\n", "+٣٣٣٣٣٣٣٣"]
)
def test_invalid_phone_numbers_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        check_phone(text)


def test_device_tokens() -> None:
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


def test_webhook_urls() -> None:
    assert check_url("https://example.com/hook?x=1").hostname == "example.com"
    assert check_url("http://sub.example.com:8080").port == 8080
    assert check_url("https://[2606:2800:220:1::1]:8443/").hostname == "2606:2800:220:1::1"
    with pytest.raises(Invalid, match="longer than"):
        check_url("https://example.com/" + "x" * 2048)


@pytest.mark.parametrize(
    ("domain", "reason"),
    [
        ("☃.com", "'☃' (U+2603) is not allowed in domain names"),
        ("xn--a-ecp.ru", "'xn--a-ecp' is not the Punycode of a valid name"),
        ("xn--.com", "'xn--' is not the Punycode of a valid name"),
        ("ü_b.com", "'_' cannot be combined with characters outside ASCII"),
        ("a_b!.com", "parts consist of letters, digits, '-' and '_', and do not begin or end with '-'"),
        ("-a.com", "parts consist of letters, digits, '-' and '_', and do not begin or end with '-'"),
        ("a..com", "a part between dots is empty"),
        ("x" * 64 + ".com", "a part between dots is longer than 63 bytes"),
        ("ü" * 60 + ".com", "a part between dots is longer than 63 bytes"),
        ("aא.com", "its characters cannot be combined in a domain name"),
        ("x." * 130 + "com", "it is longer than 253 bytes"),
    ],
)
def test_the_domain_of_an_email_is_refused_with_the_reason(domain: str, reason: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_email(f"ada@{domain}")
    text = f"the domain {domain[:80]!r} is not valid ({reason}); write one such as ada@example.com"
    assert caught.value.detail.endswith(f"is not an e-mail address: {text}")


def test_a_host_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(Invalid, match="has no host that can be called"):
        check_url("https://☃.com/")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("HTTPS://Example.com:443/a", "https://example.com"),
        ("http://example.com.:80", "http://example.com"),
        ("https://example.com:8443/", "https://example.com:8443"),
        ("https://Müller.de/", "https://xn--mller-kva.de"),
        ("https://[2001:DB8::0:1]:443/", "https://[2001:db8::1]"),
        ("https://192.0.2.1:444", "https://192.0.2.1:444"),
    ],
)
def test_the_origin_of_a_url_has_one_form(url: str, origin: str) -> None:
    assert url_origin(url) == origin
