"""The library's options and values have the names of the HTTP API."""

from datetime import UTC, datetime

import msgspec
import pytest

import tidings
from tidings.domain.notifications.notification import InlineContent
from tidings.library import notification_values
from tidings.library.notifications import NotifyOptions
from tidings.library.schedule_values import Options
from tidings.shapes import notification, schedule, topic
from tidings.shapes.fields import names_of
from tidings.testing import SimulatedClock

# Over HTTP a value that is not text is base64, and `scheduled_at` is another name for `at`.
HTTP_ALONE = {"topic", "id", "value", "key_base64", "value_base64", "scheduled_at"}


def test_options_of_a_schedule_are_the_fields_of_a_request() -> None:
    assert Options.__annotations__.keys() | {"bus"} == {*names_of(schedule.NewSchedule)} - HTTP_ALONE


def test_options_of_a_notification_are_the_fields_of_a_request() -> None:
    content = {"content", "words"}
    over_http = {*names_of(notification.NewNotification)} - {"user", "users", "to", "scheduled_at"} - content
    assert NotifyOptions.__annotations__.keys() == over_http | {*names_of(InlineContent)}


@pytest.mark.parametrize(
    ("value", "shape", "own"),
    [
        (tidings.Outcome, schedule.Outcome, {"field"}),
        (tidings.Schedule, schedule.Schedule, {"when", "lateness"}),
        (tidings.Event, schedule.Event, set()),
        (tidings.Record, topic.Record, set()),
        (notification_values.Notified, notification.Accepted, {"field"}),
        (notification_values.Notification, notification.Notification, set()),
        (notification_values.Delivery, notification.Delivery, set()),
        (notification_values.Attempt, notification.Attempt, set()),
        (notification_values.NotificationEvent, notification.NotificationEvent, set()),
    ],
)
def test_values_have_the_names_of_the_http_api(
    value: type[msgspec.Struct], shape: type[msgspec.Struct], own: set[str]
) -> None:
    assert {*value.__struct_fields__} - own <= {*names_of(shape)}


async def test_an_outcome_has_aware_datetimes() -> None:
    at = datetime(2030, 1, 1, 9, tzinfo=UTC)
    async with tidings.open(":memory:", clock=SimulatedClock()) as t:
        assert (await t.schedule("x", at=at, id="a")).due_at == at
        unknown = await t.cancel("nothing")
        assert (unknown.outcome, unknown.due_at) == ("unknown", None)
        assert unknown.remembered_since is not None
        assert unknown.remembered_since.tzinfo is UTC
