"""The most particular wish counts."""

import itertools

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.notifications.user import User, accepts, check_category, check_preferences


def test_the_most_particular_wish_counts() -> None:
    for particular, category, channel in itertools.product((None, True, False), repeat=3):
        wishes = {"sms/news": particular, "news": category, "sms": channel}
        user = User("ada", preferences={name: wish for name, wish in wishes.items() if wish is not None})
        wanted = next((wish for wish in (particular, category, channel) if wish is not None), True)
        assert accepts(user, "news", "sms") is wanted
        assert accepts(user, "transactional", "sms")


def test_other_channels_and_categories_are_not_meant() -> None:
    user = User("ada", preferences={"sms/news": False, "offers": False})
    assert accepts(user, "news", "email")
    assert accepts(user, "games", "sms")
    assert not accepts(user, "offers", "email")


@pytest.mark.parametrize(
    ("name", "advice"), [("e-mail", "did you mean email"), ("telegram", "are email, sms"), ("in-app", "mean in_app")]
)
def test_what_looks_like_a_channel_is_no_category(name: str, advice: str) -> None:
    with pytest.raises(Invalid, match=advice):
        check_preferences({name: False})


@pytest.mark.parametrize("wrong", ["fax/news", "sms/", "/news", "sms/email", "News", "a b", "sms/news/more"])
def test_wrong_keys_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_preferences({"sms": True, wrong: True})
    assert refused.value.field == f"preferences.{wrong}"


def test_what_is_transactional_cannot_be_refused() -> None:
    for key in ("transactional", "email/transactional"):
        with pytest.raises(Invalid, match="cannot opt out"):
            check_preferences({key: False})
        check_preferences({key: True})
    with pytest.raises(Invalid, match="channel"):
        check_category("email")
