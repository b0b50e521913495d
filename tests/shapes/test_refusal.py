"""Invalid JSON input is refused with the valid choices."""

import pytest

from tidings.delivery.accept.request import NotificationRequest
from tidings.domain.errors import Invalid
from tidings.shapes.refusal import convert
from tidings.shapes.user import Profile


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        ({"channel": "fax"}, "channel", "'fax' is not known: use one of email, sms, push, webhook, in_app"),
        ({"channels": ["fax"]}, "channels[0]", "'fax' is not known: use one of email, sms, push, webhook, in_app, all"),
        ({"priority": "urgent"}, "priority", "'urgent' is not known: use one of high, normal, low"),
        ({"user": 5}, "user", 'is a number: send text, for example "ada"'),
    ],
)
def test_an_invalid_choice_is_refused_with_the_valid_ones(document: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        convert(document, NotificationRequest)
    assert (refused.value.field, says in refused.value.detail) == (field, True), refused.value


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"preferences": {"email": True, "sms": "no"}}, "preferences.sms: is text: send true or false"),
        ({"variables": {"plan": 5}}, "variables.plan: is a number: send text"),
        (
            {"preferences": "no"},
            'preferences: is text: send an object, for example {"sms": false, "sms/news": true}',
        ),
    ],
)
def test_a_wrong_value_in_a_table_is_refused_by_its_key(document: dict[str, object], text: str) -> None:
    with pytest.raises(Invalid) as refused:
        convert(document, Profile)
    assert str(refused.value) == text
