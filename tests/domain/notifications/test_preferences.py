"""The most specific preference applies."""

import itertools

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.notifications.user import User, accepts, check_category, check_preferences


def test_the_most_specific_preference_applies() -> None:
    for particular, category, channel in itertools.product((None, True, False), repeat=3):
        preferences = {"sms/news": particular, "news": category, "sms": channel}
        user = User(
            "ada", preferences={name: preference for name, preference in preferences.items() if preference is not None}
        )
        wanted = next((preference for preference in (particular, category, channel) if preference is not None), True)
        assert accepts(user, "news", "sms") is wanted
        assert accepts(user, "transactional", "sms")


def test_a_preference_does_not_apply_to_other_channels_and_categories() -> None:
    user = User("ada", preferences={"sms/news": False, "offers": False})
    assert accepts(user, "news", "email")
    assert accepts(user, "games", "sms")
    assert not accepts(user, "offers", "email")


@pytest.mark.parametrize(
    ("name", "advice"), [("e-mail", "did you mean email"), ("telegram", "are email, sms"), ("in-app", "mean in_app")]
)
def test_a_channel_name_is_not_a_category(name: str, advice: str) -> None:
    with pytest.raises(Invalid, match=advice):
        check_preferences({name: False})


@pytest.mark.parametrize("wrong", ["fax/news", "sms/", "/news", "sms/email", "News", "a b", "sms/news/more"])
def test_wrong_keys_are_refused_by_name(wrong: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_preferences({"sms": True, wrong: True})
    assert refused.value.field == f"preferences.{wrong}"


def test_transactional_categories_cannot_be_opted_out_of() -> None:
    for key in ("transactional", "email/transactional"):
        with pytest.raises(Invalid, match="cannot opt out"):
            check_preferences({key: False})
        check_preferences({key: True})
    with pytest.raises(Invalid, match="channel"):
        check_category("email")
