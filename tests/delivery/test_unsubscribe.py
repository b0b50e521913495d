"""Links that unsubscribe with one click, and cannot be forged."""

from base64 import urlsafe_b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.delivery.people.unsubscribe import Unsubscription, is_one_click, link, read
from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import Email

KEY, OLDER = b"k" * 32, b"o" * 32
UNSUBSCRIPTION = Unsubscription("acme", "email", "ada@example.org", "news")


def token(key: bytes = KEY, unsubscription: Unsubscription = UNSUBSCRIPTION) -> str:
    return link("https://t.example/u", key, unsubscription).rpartition("/")[2]


def test_a_link_contains_its_unsubscription_and_fits_a_header() -> None:
    assert read([KEY], token()) == UNSUBSCRIPTION
    Email("i", "ada@example.org", "s", "t", unsubscribe_url=link("https://t.example/u", KEY, UNSUBSCRIPTION))


def test_a_link_reveals_no_user_and_is_the_same_in_every_attempt() -> None:
    shown = urlsafe_b64decode(token() + "==")
    for word in (b"ada", b"example", b"acme", b"news", b"email"):
        assert word not in shown
    assert token() == token()
    assert token() != token(unsubscription=Unsubscription("acme", "email", "bob@example.org", "news"))


def test_an_old_link_works_while_its_key_is_configured() -> None:
    assert read([KEY, OLDER], token(OLDER)) == UNSUBSCRIPTION
    with pytest.raises(Invalid, match="not a valid unsubscribe link"):
        read([KEY], token(OLDER))


@given(st.integers(0, 10_000), st.sampled_from("ABCxyz019_-"))
def test_no_changed_link_works(place: int, letter: str) -> None:
    good = token()
    place %= len(good) - 1  # the last letter may hold bits that do not count
    changed = good[:place] + letter + good[place + 1 :]
    if changed != good:
        with pytest.raises(Invalid):
            read([KEY], changed)


@given(st.text(max_size=100))
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read([KEY], text)


def test_only_the_form_of_the_rfc_is_one_click() -> None:
    assert is_one_click(b"List-Unsubscribe=One-Click")
    assert not is_one_click(b"")
    assert not is_one_click(b"List-Unsubscribe=No")
