"""Invalid JSON input is refused with the valid choices."""

import pytest

from tidings.delivery.accept.request import NotificationRequest
from tidings.domain.errors import Invalid
from tidings.shapes.refusal import convert


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
