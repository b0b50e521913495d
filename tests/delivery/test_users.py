"""Users: each field checked, single fields changed, found by id and address."""

from typing import Any

import pytest

from tests.delivery.services import ACME, ADA, Services
from tidings.delivery.people.profile import Profile, QuietHours
from tidings.domain.errors import Conflict, Invalid
from tidings.domain.notifications.address import Device
from tidings.domain.notifications.user import Quiet

APNS = {"platform": "apns", "token": "ab" * 32}
FCM = {"platform": "fcm", "token": "x" * 40}


async def test_put_get_replace_delete(services: Services) -> None:
    made = await services.users.put(ACME, "bob", {"email": "bob@example.com", "quiet": "22:00-07:00"})
    assert made.created
    assert made.user.quiet == Quiet(1320, 420)
    assert made.user.zone == "UTC"
    again = await services.users.put(ACME, "bob", {"phone": "+15550101"})
    assert not again.created
    assert again.user.email is None  # all of it was replaced
    assert (await services.users.get(ACME, "bob")) is not None
    assert await services.users.get("other", "bob") is None
    assert await services.users.delete(ACME, "bob")
    assert not await services.users.delete(ACME, "bob")


async def test_single_fields_can_be_changed(services: Services) -> None:
    changes: dict[str, Any] = {
        "phone": None,
        "zone": "Europe/Berlin",
        "preferences": {"news": False},
        "devices": [APNS, FCM, APNS],
        "quiet": {"hours": "21:00-06:00", "then": "drop"},
    }
    changed = await services.users.patch(ACME, "ada", changes)
    assert changed is not None
    user = changed.user
    assert (user.email, user.phone, user.zone) == ("ada@example.com", None, "Europe/Berlin")
    assert user.devices == (Device("apns", "ab" * 32), Device("fcm", "x" * 40))
    assert user.quiet == Quiet(1260, 360, "drop")
    more = await services.users.patch(ACME, "ada", {"preferences": {"sms": True}, "quiet": {"then": "defer"}})
    assert more is not None
    assert more.user.preferences == {"news": False, "sms": True}
    assert more.user.quiet == Quiet(1260, 360, "defer")
    assert await services.users.patch(ACME, "nobody", {"name": "x"}) is None


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"email": "no"}, "email"),
        ({"email": "a@b.example\r\nBcc: x@y.example"}, "email"),
        ({"phone": "555"}, "phone"),
        ({"webhook": "ftp://x.example"}, "webhook"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"locale": "english!"}, "locale"),
        ({"quiet": "22-7"}, "quiet"),
        ({"quiet": {"hours": "late"}}, "quiet.hours"),
        ({"quiet": {"hours": "22:00-07:00", "then": "sleep"}}, "quiet.then"),
        ({"preferences": {"fax/news": False}}, "preferences.fax/news"),
        ({"preferences": {"transactional": False}}, "preferences.transactional"),
        ({"devices": [{"platform": "apns", "token": "short"}]}, "token"),
        ({"devices": [{"platform": "pager", "token": "x"}]}, "devices[0].platform"),
        ({"devices": [FCM | {"name": "x"}]}, "devices[0].name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 7}, "name"),
        ({"nick": "a"}, "nick"),
        ({"variables": {"x": "y" * 70_000}}, "variables.x"),
    ],
)
async def test_wrong_fields_are_named(services: Services, document: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        await services.users.put(ACME, "bob", document)
    assert refused.value.field == field
    assert await services.users.get(ACME, "bob") is None


async def test_an_invalid_choice_is_refused_with_the_valid_ones(services: Services) -> None:
    for document, facts in (
        ({"devices": [{"platform": "pager", "token": "x"}]}, "'pager' is not known: use one of apns, fcm"),
        ({"quiet": {"hours": "22:00-07:00", "then": "sleep"}}, "'sleep' is not known: use one of defer, drop"),
    ):
        with pytest.raises(Invalid, match=facts):
            await services.users.put(ACME, "bob", document)


@pytest.mark.parametrize("wrong", ["", "a/b", "a b", "-a", "a" * 101, "\u00e4"])
async def test_wrong_ids_are_refused(services: Services, wrong: str) -> None:
    with pytest.raises(Invalid, match="not a valid user id"):
        await services.users.put(ACME, wrong, Profile())


async def test_a_change_that_expects_another_version_is_refused(services: Services) -> None:
    seen = await services.users.get(ACME, "ada")
    assert seen is not None
    await services.users.patch(ACME, "ada", {"name": "Ada L"}, expected=seen.version)
    for change in (
        services.users.put(ACME, "ada", ADA, expected=seen.version),
        services.users.patch(ACME, "ada", {"name": "x"}, expected=seen.version),
        services.users.delete(ACME, "ada", expected=seen.version),
        services.users.put(ACME, "ada", ADA, expected=0),
    ):
        with pytest.raises(Conflict):
            await change


async def test_pages_by_prefix(services: Services) -> None:
    names = ["b", "ba", "ba.1", "ba:2", "bb", "c", "az~"]
    for name in names:
        await services.users.put(ACME, name, Profile(quiet=QuietHours("22:00-07:00")))
    page = await services.users.page(ACME, "ba", limit=2)
    assert [user.id for user in page.users] == ["ba", "ba.1"]
    rest = await services.users.page(ACME, "ba", page.cursor, limit=2)
    assert ([user.id for user in rest.users], rest.cursor) == (["ba:2"], None)
    everyone = await services.users.page(ACME)
    assert [user.id for user in everyone.users] == sorted([*names, "ada"])
    with pytest.raises(Invalid):
        await services.users.page(ACME, limit=0)


async def test_users_are_found_by_address(services: Services) -> None:
    await services.users.put(ACME, "twin", Profile(email="Ada@Example.com"))
    found = await services.users.with_address(ACME, "email", "ADA@example.com")
    assert {user.id for user in found} == {"ada", "twin"}
    assert [user.id for user in await services.users.with_address(ACME, "sms", "+15550100")] == ["ada"]
    await services.users.patch(ACME, "ada", {"email": "new@example.com"})
    assert [user.id for user in await services.users.with_address(ACME, "email", "ada@example.com")] == ["twin"]
