"""Addresses that nothing may be sent to."""

import pytest

from tests.delivery.office import ACME, SECOND, Office
from tidings.delivery.suppressions import Place
from tidings.domain.address import Device
from tidings.domain.errors import Invalid


async def test_add_ask_list_remove(office: Office) -> None:
    suppressions = office.suppressions
    assert await suppressions.add(ACME, "email", "Ada@Example.com", "bounced")
    assert not await suppressions.add(ACME, "email", "ada@example.com", "complained")  # the first reason stays
    office.clock.advance(SECOND)
    device = Device("fcm", "x" * 20)
    assert await suppressions.add(ACME, "push", device, "gone")
    places = [Place("email", "ada@example.com"), Place("sms", "+15550100"), Place("push", device)]
    found = await suppressions.of(ACME, places)
    assert [None if one is None else one.reason for one in found] == ["bounced", None, "gone"]
    assert await suppressions.of("other", places) == [None] * 3
    page = await suppressions.page(ACME, limit=1)
    assert [one.channel for one in page.suppressions] == ["push"]
    rest = await suppressions.page(ACME, cursor=page.cursor)
    assert ([one.address for one in rest.suppressions], rest.cursor) == (["ada@example.com"], None)
    assert [one.channel for one in (await suppressions.page(ACME, "email")).suppressions] == ["email"]
    assert await suppressions.remove(ACME, "email", "ADA@example.com")
    assert not await suppressions.remove(ACME, "email", "ada@example.com")
    assert await suppressions.of(ACME, places[:1]) == [None]


async def test_one_category_alone(office: Office) -> None:
    await office.suppressions.add(ACME, "email", "a@example.com", "unsubscribed", category="news")
    asked = [Place("email", "a@example.com", category) for category in ("news", "offers", "transactional")]
    found = await office.suppressions.of(ACME, asked)
    assert [one is not None for one in found] == [True, False, False]
    await office.suppressions.add(ACME, "email", "a@example.com", "bounced")
    assert all(await office.suppressions.of(ACME, asked))


async def test_wrong_addresses_and_cursors_are_refused(office: Office) -> None:
    for channel, address in (("email", "x"), ("sms", "5"), ("push", "token"), ("email", Device("fcm", "x" * 20))):
        with pytest.raises(Invalid):
            await office.suppressions.add(ACME, channel, address, "no")  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        await office.suppressions.add(ACME, "email", "a@example.com", "two\nlines")
    with pytest.raises(Invalid):
        await office.suppressions.page(ACME, cursor="nonsense")
