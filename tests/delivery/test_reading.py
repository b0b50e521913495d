"""What a program sends is refused in words: the choices beside what is none of them."""

import pytest

from tidings.delivery.asking import Notify
from tidings.delivery.reading import convert
from tidings.domain.errors import Invalid


@pytest.mark.parametrize(
    ("document", "field", "says"),
    [
        ({"channel": "fax"}, "channel", "'fax' is not one of email, sms, push, webhook, in_app"),
        ({"channels": ["fax"]}, "channels[0]", "'fax' is not one of email, sms, push, webhook, in_app, all"),
        ({"priority": "urgent"}, "priority", "'urgent' is not one of high, normal, low"),
        ({"user": 5}, "user", "has the wrong type"),
    ],
)
def test_choices_are_listed(document: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        convert(document, Notify)
    assert (refused.value.field, says in refused.value.detail) == (field, True), refused.value
