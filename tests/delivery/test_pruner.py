"""Finished notifications are pruned; those that no worker has read are not, however old they are."""

from typing import Any

import msgspec
import pytest

from tests.delivery.services import ACME, DAY, SECOND, Services
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.accept.request import NotificationRequest
from tidings.delivery.notifications.pruner import Pruner, PrunerService
from tidings.delivery.notifications.reader import Search
from tidings.delivery.rows import change, delivery_key, notification_key
from tidings.domain.notifications.notification import GROUP, InlineContent
from tidings.ports.tables import Remove


async def forget(services: Services) -> None:
    """Let time pass until finished schedules are forgotten."""
    services.clock.advance(8 * DAY)
    for _ in range(20):
        await services.store.tend(services.clock.now())
        services.clock.advance(2 * SECOND)


async def is_kept(services: Services, name: str) -> bool:
    [there] = await services.tables.get([notification_key(ACME, name)], services.clock.now())
    return there is not None


async def test_a_notification_that_no_worker_has_read_is_not_pruned_after_its_schedule_is_forgotten(
    services: Services,
) -> None:
    sweeper = PrunerService(services.store, services.pruner, services.clock)
    await services.notify(id="visa", user="ada", words={"text": "Your visa ends"}, channel="email", at="P32D")
    services.clock.advance(33 * DAY)
    [record] = await services.release("notify.email")
    await forget(services)
    assert await services.engine.find(ACME, "visa") is None
    await sweeper.round()
    assert await is_kept(services, "visa")
    await services.store.commit(ACME, "notify.email", GROUP, {record.partition: record.offset + 1})
    await sweeper.round()
    assert not await is_kept(services, "visa")


async def test_a_delivery_that_waits_for_a_retry_can_be_cancelled_after_its_schedule_is_forgotten(
    services: Services,
) -> None:
    for name in ("waits", "went"):
        await services.notify(id=name, user="ada", words={"text": "Hi"}, channel="email")
    await services.release("notify.email")
    await services.deliver("waits", state="pending", reason="credentials_refused", provider_id=None)
    await services.deliver("went")
    await forget(services)
    assert (await services.cancellation.cancel(ACME, "went")).outcome == "already_released"
    assert (await services.cancellation.cancel(ACME, "waits")).outcome == "cancelled"
    delivery, status = await services.reader.delivery(ACME, "waits/1"), await services.reader.get(ACME, "waits")
    assert delivery is not None
    assert status is not None
    assert (delivery.state, status.state) == ("cancelled", "cancelled")


async def test_a_notification_that_no_worker_has_read_can_be_cancelled_after_its_schedule_is_forgotten(
    services: Services,
) -> None:
    await services.notify(id="unread", user="ada", words={"text": "Hi"}, channel="email")
    await services.release("notify.email")
    await forget(services)
    assert (await services.cancellation.cancel(ACME, "unread")).outcome == "cancelled"
    status = await services.reader.get(ACME, "unread")
    assert status is not None
    assert status.state == "cancelled"  # and a worker that comes back does not send it


async def test_a_notification_that_no_worker_has_read_keeps_its_dedupe_key(services: Services) -> None:
    """Its row shows that it was accepted, also after its schedule is forgotten."""
    asked = {"user": "ada", "words": {"text": "Hi"}, "channel": "email", "dedupe_key": "k", "dedupe_window": "P30D"}
    await services.notify(id="unread", **asked)
    await services.release("notify.email")
    await forget(services)
    later = await services.notify(id="later", **asked)
    assert (later.outcome, later.first) == ("skipped", "unread")
    assert await is_kept(services, "unread")


@pytest.mark.parametrize("when", [{}, {"every": "R1/PT1H"}])
async def test_a_notification_goes_with_its_last_delivery(services: Services, when: dict[str, Any]) -> None:
    """Also if that is before its schedule is forgotten: nothing says any more what became of it."""
    changes = NotificationChanges(services.tables, services.engine, services.acceptance, services.clock)
    request = NotificationRequest(user="ada", content=InlineContent("Hi"), channel="email", **when)
    await services.acceptance.accept(ACME, msgspec.structs.replace(request, id="n"))
    services.clock.advance(3_600 * SECOND)
    [record] = await services.release("notify.email")
    waiting = await services.reader.get(ACME, "n")
    assert waiting is not None
    assert (waiting.state, waiting.reason) == ("pending", "released")
    await services.deliver("n")
    await services.store.commit(ACME, "notify.email", GROUP, {record.partition: record.offset + 1})
    for state in ("sent", None):
        shown, page = await services.reader.get(ACME, "n"), await services.reader.page(ACME, Search())
        assert [None if shown is None else shown.state] == [state]
        assert [each.state for each in page.notifications] == ([] if state is None else [state])
        cancelled = await services.cancellation.cancel(ACME, "n")
        assert cancelled.outcome == ("unknown" if state is None else "already_released")
        [repeated] = await services.acceptance.accept(ACME, msgspec.structs.replace(request, id="n"))
        assert (repeated.outcome, repeated.state) == (("conflict", None) if state is None else ("unchanged", "sent"))
        await Pruner(services.tables, services.engine, services.clock, SECOND).sweep(ACME)
        assert await is_kept(services, "n") == (state is not None)
        if state is not None:
            row = delivery_key(ACME, "n/1")
            services.clock.advance(2 * SECOND)
            assert await change(services.tables, [[Remove(row)]], services.clock.now()) != [0]
    again = await changes.replace(ACME, "n", request, reuse=True)
    assert again.outcome == "scheduled"
