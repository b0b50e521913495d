"""Notifications in the library: users, templates, notifications, deliveries and inboxes."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

import tidings
from tidings.domain.errors import Conflict, Invalid
from tidings.library import Tidings
from tidings.library.notification_values import Notification
from tidings.testing import eventually

PARTS = {
    "email": {"en": {"subject": "Hi {{ name }}", "text": "Hello {{ name }}."}},
    "in_app": {"en": {"title": "Hi {{ name }}", "body": "Look."}},
}


@pytest.fixture
async def t(tmp_path: Path) -> AsyncIterator[Tidings]:
    async with tidings.open(str(tmp_path / "tidings.db")) as opened:
        await opened.users.put("ada", email="ada@example.com", zone="America/New_York")
        await opened.templates.put("reminder", PARTS)
        yield opened


async def settled(t: Tidings, id: str, state: str = "sent") -> Notification:
    """The notification, once it is in this state."""

    async def look() -> Notification | None:
        found = await t.notifications.get(id)
        return found if found is not None and found.state == state else None

    found = await eventually(look, timeout_s=10)
    assert found is not None
    return found


async def test_a_notification_is_written_to_a_file(t: Tidings, tmp_path: Path) -> None:
    made = await t.notify("ada", template="reminder", variables={"name": "Ada"}, channel="email", priority="high")
    assert (made.outcome, made.user, made.channels) == ("scheduled", "ada", ("email",))
    found = await settled(t, made.id)
    [delivery] = [delivery async for delivery in t.deliveries.list(user="ada")]
    assert found.deliveries == (delivery,)
    assert (delivery.provider, delivery.channel, delivery.attempts[0].outcome) == ("files", "email", "accepted")
    assert delivery.late_ms is not None
    assert 0 <= delivery.late_ms < 10_000
    assert await t.deliveries.get(delivery.name) == delivery
    message = message_from_bytes((tmp_path / "outbox" / str(delivery.provider_id)).read_bytes())
    assert message["Subject"] == "Hi Ada"
    assert message.get_payload() == "Hello Ada.\r\n"
    assert [line.event for line in await t.notifications.explain(made.id)][:2] == ["accepted", "released"]
    assert (await t.deliveries.retry(delivery.name)).outcome == "rejected"


async def test_an_erased_user_is_in_no_file(t: Tidings, tmp_path: Path) -> None:
    made = await t.notify("ada", text="For Ada alone.", channel="email")
    await settled(t, made.id)
    assert _said(tmp_path, b"ada@example.com", b"Ada alone")
    erased = await t.users.erase("ada")
    assert (erased.removed["files"], erased.providers) == (1, ())
    assert not _said(tmp_path, b"ada@example.com", b"Ada alone")


def _said(folder: Path, *words: bytes) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(word in path.read_bytes() for word in words)]


async def test_local_times_are_in_the_users_time_zone(t: Tidings) -> None:
    moment = datetime(2030, 1, 1, 9)  # noqa: DTZ001 - local time of the user
    local = await t.notify("ada", text="x", channel="in_app", at=moment)
    assert local.due_at == datetime(2030, 1, 1, 14, tzinfo=UTC)
    said = await t.notify("ada", text="x", channel="in_app", at="tomorrow 09:00")
    assert said.due_at is not None
    assert (said.due_at.minute, said.due_at.hour in {13, 14}) == (0, True)
    exact = await t.notify("ada", text="x", channel="in_app", at=datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert exact.due_at == datetime(2030, 1, 1, 9, tzinfo=UTC)
    later = await t.notify("ada", text="x", channel="in_app", at=timedelta(hours=1), expires_after=timedelta(minutes=5))
    assert (await t.notifications.cancel(later.id)).outcome == "cancelled"
    weekly = await t.notify("ada", text="x", channel="in_app", cron="0 9 * * MON", zone="Europe/Berlin", count=2)
    assert weekly.due_at is not None
    assert weekly.due_at.weekday() == 0
    pending = [each.id async for each in t.notifications.list(user="ada", state="pending")]
    assert pending == [weekly.id, exact.id, said.id, local.id]


async def test_several_users(t: Tidings) -> None:
    await t.users.put("bob", email="bob@example.com", zone="Asia/Tokyo")
    options: dict[str, Any] = {"template": "reminder", "variables": {"name": "you"}, "at": "tomorrow 09:00"}
    made = await t.notify_many(["ada", "bob", "eve"], **options, id="all")
    assert [each.outcome for each in made] == ["scheduled", "scheduled", "rejected"]
    assert made[0].due_at != made[1].due_at
    assert (made[2].field, made[2].user) == ("users", "eve")
    assert [each.batch async for each in t.notifications.list(batch="all")] == ["all", "all"]


async def test_a_bare_address_and_a_duplicate(t: Tidings) -> None:
    first = await t.notify(to="eve@example.com", channel="email", text="x", title="Hi", dedupe_key="k")
    await settled(t, first.id)
    again = await t.notify(to="eve@example.com", channel="email", text="x", title="Hi", dedupe_key="k")
    assert (again.outcome, again.reason, again.first) == ("skipped", "duplicate", first.id)


async def test_a_repeat_of_a_cancelled_notification_has_its_state(t: Tidings) -> None:
    made = [await t.notify("ada", text="x", channel="in_app", at=timedelta(hours=1), id="mine") for _ in range(2)]
    assert [(each.outcome, each.state) for each in made] == [("scheduled", None), ("unchanged", "pending")]
    await t.notifications.cancel("mine")
    again = await t.notify("ada", text="x", channel="in_app", at=timedelta(hours=1), id="mine")
    assert (again.outcome, again.state) == ("unchanged", "cancelled")


async def test_inbox(t: Tidings) -> None:
    coming = t.inbox.follow("ada")
    made = await t.notify("ada", template="reminder", variables={"name": "Ada"}, channel="in_app")
    line = await anext(coming)
    assert (line.title, line.body, line.read_at) == ("Hi Ada", "Look.", None)
    await settled(t, made.id)
    assert await t.inbox.unread("ada") == 1
    assert await t.inbox.read("ada", line.id, "none-such") == 1
    [kept] = [each async for each in t.inbox.list("ada")]
    assert (kept.id, kept.read_at is not None) == (line.id, True)
    assert [each async for each in t.inbox.list("ada", unread=True)] == []
    assert await t.inbox.read("ada") == 0
    await coming.aclose()  # type: ignore[attr-defined]


async def test_users(t: Tidings, tmp_path: Path) -> None:
    ada = await t.users.change("ada", locale="de", zone=None)
    assert ada is not None
    assert (ada.email, ada.locale, ada.zone) == ("ada@example.com", "de", "UTC")
    assert await t.users.change("nobody", locale="de") is None
    with pytest.raises(Invalid, match=r"the domain '☃\.com' is not valid"):
        await t.users.put("eve", email="eve@☃.com")
    with pytest.raises(Invalid, match="the domain 'xn--a' is not valid"):
        await t.notify(to="eve@xn--a", channel="email", text="x")
    path = tmp_path / "people.csv"
    path.write_text("id,email\nbob,bob@example.com\neve,eve@☃.com\n")
    [*_, last] = [report async for report in t.users.import_file(path, "csv")]
    assert (last.created, last.bad, last.bad_lines[0].line) == (1, 1, 3)
    assert [user.id async for user in t.users.list()] == ["ada", "bob"]
    assert [user.id async for user in t.users.list("b")] == ["bob"]
    assert await t.users.delete("bob")
    assert not await t.users.delete("bob")
    assert await t.users.get("bob") is None
    await t.notify("ada", text="x", channel="in_app", at="+1h")
    erased = await t.users.erase("ada")
    assert (erased.removed["user"], erased.cancelled) == (1, 1)


async def test_templates(t: Tidings) -> None:
    shown = await t.templates.preview("reminder", "email", {"name": "Ada"})
    assert shown is not None
    assert (shown.title, shown.text) == ("Hi Ada", "Hello Ada.")
    with pytest.raises(Invalid, match="missing 'name'"):
        await t.templates.preview("reminder", "email")
    await t.notify("ada", template="reminder", variables={"name": "Ada"}, at="+1h")
    more = {**PARTS, "in_app": {"en": {"title": "Hi", "body": "{{ more }}"}}}
    with pytest.raises(Conflict):
        await t.templates.put("reminder", more)
    stored = await t.templates.put("reminder", more, force=True, urgency="digest")
    assert (stored.template.version, stored.needs) == (2, ("more", "name"))
    assert [each.version for each in await t.templates.versions("reminder")] == [2, 1]
    assert [(each.name, each.latest) async for each in t.templates.list()] == [("reminder", 2)]
    first = await t.templates.get("reminder", 1)
    assert first is not None
    assert await t.templates.delete("reminder", force=True)
    assert await t.templates.get("reminder") is None


@pytest.mark.slow
async def test_suppressions(t: Tidings) -> None:
    assert await t.suppressions.add("email", "ada@example.com")
    made = await t.notify("ada", text="x", channel="email")
    assert (await settled(t, made.id, "skipped")).reason == "suppressed"
    assert [each.address async for each in t.suppressions.list("email")] == ["ada@example.com"]
    assert await t.suppressions.remove("email", "ada@example.com")
    assert (await t.deliveries.retry(f"{made.id}/1")).outcome == "retried"
    await settled(t, made.id)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "template"),
        ({"template": "none"}, "template"),
        ({"template": "reminder"}, "variables"),
        ({"text": "x", "channel": "fax"}, "channel"),
        ({"title": "x"}, "text"),
        ({"text": "x", "at": 5}, "at"),
        ({"text": "x", "zone": 5}, "zone"),
        ({"text": "x", "expires_after": 5}, "expires_after"),
        ({"text": 5}, "content.text"),
    ],
)
async def test_wrong_values_are_refused_by_field(t: Tidings, options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await t.notify("ada", **options)
    assert refused.value.field == field


async def test_unsupported_arguments_are_refused(t: Tidings) -> None:
    with pytest.raises(TypeError, match="there is no option 'subject'"):
        await t.notify("ada", subject="x")  # type: ignore[call-arg]
    with pytest.raises(Invalid, match="unknown user"):
        await t.notify("nobody", text="x")
    with pytest.raises(Invalid, match="mail"):
        await t.users.put("ada", mail="ada@example.com")


async def test_the_schedule_of_a_notification_cannot_be_changed(t: Tidings) -> None:
    await t.notify("ada", template="reminder", variables={"name": "Ada"}, id="tea", at=timedelta(hours=1))
    for outcome in (await t.replace("tea", "greetings", "x"), await t.cancel("tea")):
        assert outcome.outcome == "rejected"
        assert (outcome.reason or "").startswith("this schedule belongs to notification 'tea': cancel the notification")
    [added] = await t.schedule_many([tidings.Request("greetings", b"x", id="tea")])
    assert added.reason == "this schedule belongs to notification 'tea': use another id"
    found = await t.notifications.get("tea")
    assert found is not None
    assert found.state == "pending"
    assert (await t.fire("tea")).outcome == "fired"
    await settled(t, "tea")


async def test_the_topics_of_deliveries_are_reserved(t: Tidings) -> None:
    """A record there could name a pending notification, which would be sent early."""
    later = await t.notify("ada", template="reminder", variables={"name": "Ada"}, channel="email", at="+1h")
    forged = {"notification": later.id}
    with pytest.raises(Invalid, match="topic: is reserved for the deliveries of notifications"):
        await t.schedule("notify.email", forged)
    with pytest.raises(Invalid, match="topic: is reserved"):
        await t.replace("mine", "notify.email", forged)
    [outcome] = await t.schedule_many([tidings.Request("notify.email", b"{}")])
    assert outcome.reason is not None
    assert (outcome.outcome, outcome.reason.startswith("topic: is reserved")) == ("rejected", True)
    found = await t.notifications.get(later.id)
    assert found is not None
    assert found.state == "pending"


async def test_replace_patch_pause_and_resume(t: Tidings) -> None:
    one = t.notifications
    assert (await one.replace("mine", "ada", text="x", channel="in_app", at=timedelta(hours=1))).outcome == "scheduled"
    assert (await one.replace("mine", "ada", text="y", channel="in_app", at=timedelta(hours=1))).outcome == "replaced"
    moved = await one.reschedule("mine", datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert (moved.outcome, moved.due_at) == ("replaced", datetime(2030, 1, 1, 9, tzinfo=UTC))
    assert (await one.patch("mine", priority="high", text="z")).outcome == "replaced"
    assert (await one.pause("mine")).outcome == "paused"
    assert (await one.resume("mine")).outcome == "resumed"
    found = await one.get("mine")
    assert found is not None
    assert (found.due_at, found.priority) == (datetime(2030, 1, 1, 9, tzinfo=UTC), "high")
    assert (await one.cancel("mine")).outcome == "cancelled"
    assert (await one.replace("mine", "ada", text="x", channel="in_app")).outcome == "cancelled"
    again = await one.replace("mine", "ada", text="x", channel="in_app", at=timedelta(hours=1), reuse=True)
    assert again.outcome == "scheduled"
    assert [(await each).outcome for each in (one.pause("none"), one.reschedule("none", "+1h"))] == ["unknown"] * 2
    with pytest.raises(Invalid, match="missed"):
        await one.resume("mine", "never")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="template"):
        await one.patch("mine", template="none")


async def test_values_that_no_json_has_are_refused_by_field(t: Tidings) -> None:
    await t.users.put("ada", email="ada@example.com")
    loop: list[object] = []
    loop.append(loop)
    wrong: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("channel", lambda: t.suppressions.add("fax", "x", "why")),  # type: ignore[arg-type]
        ("at", lambda: t.notify("ada", text="x", at=timedelta(days=-5), past="refuse")),
        ("at", lambda: t.schedule("greetings", b"x", at=timedelta(days=-5), past="refuse")),
        ("data.v", lambda: t.notify("ada", text="x", data={"v": math.nan})),
        ("data.v", lambda: t.notify("ada", text="x", data={"v": [{"w": -math.inf}]})),
        ("content.text", lambda: t.notify("ada", text="\ud800")),
        ("content.title", lambda: t.notify("ada", text="x", title="\udfff")),
        ("parts", lambda: t.templates.put("x", {"in_app": {"en": {"title": "\ud800", "body": "b"}}})),
        ("variables", lambda: t.notify("ada", template="reminder", variables={"v": loop})),
        ("users", lambda: t.notify_many("ada", text="x")),
    ]
    for field, call in wrong:
        with pytest.raises(Invalid) as refused:
            await call()
        assert refused.value.field.startswith(field), refused.value


async def test_words_that_find_nothing_are_refused(t: Tidings) -> None:
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("state", lambda: t.notifications.list(state="zzz")),  # type: ignore[arg-type]
        ("state", lambda: t.deliveries.list(state="paused")),  # type: ignore[arg-type]
        ("channel", lambda: t.suppressions.list("fax")),  # type: ignore[arg-type]
        ("form", lambda: t.users.import_file("users.xml", "xml")),  # type: ignore[arg-type]
    ]
    for field, call in wrong:
        with pytest.raises(Invalid, match=field):
            call()
    assert [each async for each in t.notifications.list(state="paused")] == []


async def test_only_unread_messages_count_as_marked(t: Tidings) -> None:
    await t.users.put("ada", email="ada@example.com")
    await t.notify("ada", channel="in_app", text="x", id="n")
    await eventually(lambda: t.inbox.unread("ada"))
    assert await t.inbox.read("ada", "n/1", "n/1", "other") == 1
    assert await t.inbox.read("ada", "n/1") == 0
