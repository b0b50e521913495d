"""The request of a notification: its digest, by which a repeat is recognised."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.people.profile import check_id, check_ids
from tidings.domain.errors import Invalid


@pytest.mark.parametrize(
    ("sent", "digest"),
    [
        ({"user": "ada", "words": {"text": "hi", "title": "t"}, "at": "+1h"}, "521756dca552fec0f90883a4bd604d6b"),
        ({"user": "ada", "content": {"text": "hi", "title": "t"}, "at": "+1h"}, "521756dca552fec0f90883a4bd604d6b"),
        (
            {
                "user": "ada",
                "template": "x",
                "variables": {"a": 1},
                "channels": ["email", "sms"],
                "priority": "high",
                "dedupe_key": "k",
                "rdates": ["2027-01-01"],
            },
            "764bfb0f978de9f3ac036eb9f9f706c6",
        ),
        (
            {"to": "a@example.com", "channel": "email", "content": {"text": "x"}, "past": "send"},
            "2286347799673729e8b30d83136d48f9",
        ),
    ],
)
def test_digests_are_those_of_version_0_1(sent: dict[str, Any], digest: str) -> None:
    """A notification that an earlier version accepted and that is sent again is `unchanged`."""
    assert msgspec.json.decode(msgspec.json.encode(sent), type=NotificationRequest).digest() == digest


IDS = ("ada", "a" * 100, "a" * 101, "", "a\nb", "\n", "a\n", "zo\u00eb", "eve@example.com", "-x", "a b")


@pytest.mark.parametrize("first", IDS)
@pytest.mark.parametrize("second", IDS)
def test_the_ids_of_a_list_are_checked_as_one_by_one(first: str, second: str) -> None:
    for ids in ((first,), (first, second), ("ada", first, second, "bob")):
        assert _refusal(check_ids, ids, "users") == next(
            (refused for each in ids if (refused := _refusal(check_id, each, "users"))), None
        )


def _refusal(check: Callable[..., None], *given: object) -> str | None:
    try:
        check(*given)
    except Invalid as invalid:
        return str(invalid)
    return None
