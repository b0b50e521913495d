"""One key for all ways of writing an address."""

from unicodedata import normalize

import pytest

from tidings.domain.notifications.address import Device
from tidings.domain.notifications.address_key import address_key, digest, digests, former_keys, looks_like
from tidings.domain.notifications.message import ChannelName


@pytest.mark.parametrize(
    ("channel", "key", "others"),
    [
        ("email", "ada@example.com", ["Ada@Example.COM", "ADA@example.com"]),
        (
            "email",
            "ada@xn--mller-kva.de",
            ["ada@müller.de", "Ada@MÜLLER.de", normalize("NFD", "ada@müller.de"), "ada@XN--MLLER-KVA.DE"],
        ),
        ("email", "adè@example.com", [normalize("NFD", "adè@example.com"), "ADÈ@example.com"]),
        ("email", "a@xn--r8jz45g.jp", ["a@例え。jp"]),
        ("sms", "+15550100123", ["+1 555 010-0123", "+1 (555) 010.0123", "+1\u00a0555\u20110100123"]),
        (
            "webhook",
            "https://example.com/",
            ["https://example.com", "HTTPS://EXAMPLE.com:443", "https://example.com./a/.."],
        ),
        (
            "webhook",
            "https://xn--mller-kva.de:8443/a/c~d%2Fe?q=%C3%A9",
            ["https://MÜLLER.de:8443/a/./b/../c%7ed%2fe?q=%c3%a9", "https://müller.de:8443/%61/c~d%2Fe?q=é"],
        ),
        ("webhook", "http://[2001:db8::1]/", ["http://[2001:DB8:0:0::1]:80"]),
        ("in_app", "Ada", []),
    ],
)
def test_all_spellings_of_an_address_have_one_key(channel: ChannelName, key: str, others: list[str]) -> None:
    assert address_key(channel, key) == key
    assert {address_key(channel, each) for each in others} <= {key}
    assert {digest(channel, each) for each in others} <= {digest(channel, key)}


@pytest.mark.parametrize(
    ("channel", "one", "other"),
    [
        ("email", "ada@example.com", "ada@example.org"),
        ("email", "ada@straße.de", "ada@strasse.de"),
        ("email", "a.da@example.com", "ada@example.com"),
        ("email", "ada+tea@example.com", "ada@example.com"),
        ("sms", "+15550100123", "+15550100124"),
        ("webhook", "https://example.com/a", "https://example.com/A"),
        ("webhook", "https://example.com/a", "https://example.com/a/"),
        ("webhook", "https://example.com/a%2Fb", "https://example.com/a/b"),
        ("webhook", "https://example.com/?a=1&b=2", "https://example.com/?b=2&a=1"),
        ("webhook", "https://example.com:8443/", "https://example.com/"),
        ("webhook", "http://example.com/", "https://example.com/"),
        ("in_app", "Ada", "ada"),
    ],
)
def test_other_addresses_have_other_keys(channel: ChannelName, one: str, other: str) -> None:
    assert address_key(channel, one) != address_key(channel, other)


def test_most_addresses_have_the_key_that_version_0_1_gave_them() -> None:
    assert former_keys("email", "ada@example.com") == ()
    assert former_keys("email", "ada@EXAMPLE.com") == ()
    assert former_keys("webhook", "https://example.com/hook") == ()
    assert former_keys("sms", "+15550100") == ()
    assert former_keys("push", Device("fcm", "x" * 20)) == ()
    # As version 0.1 computed it.
    assert digests("email", "Zoe@Example.com") == ("4b262b3f79b24feb35503a7ebec9b7f1",)


def test_addresses_that_had_another_key_are_found_by_it_too() -> None:
    assert former_keys("email", "Ada@xn--mller-kva.de") == ("ada@müller.de",)
    assert former_keys("email", "Ada@Müller.de") == ("ada@müller.de",)
    assert former_keys("webhook", "https://Example.com") == ("https://Example.com",)


@pytest.mark.parametrize("text", ["", "@", "ada", "ada@", "ada@-.de", "https://[", "https://x:99999/", "\ud800@x.de"])
def test_other_texts_have_a_key_too(text: str) -> None:
    for channel in ("email", "sms", "webhook", "in_app"):
        assert len(digest(channel, text)) == 32


def test_the_channel_of_an_address_follows_from_its_form() -> None:
    assert looks_like("HTTPS://example.com/") == "webhook"
    assert looks_like("ada@example.com") == "email"
    assert looks_like("+15550100") == "sms"
    assert looks_like("apns:00") == "push"
