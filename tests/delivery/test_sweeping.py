"""What is over is swept; what no worker has read is not, however long ago it was released."""

from tests.delivery.office import ACME, DAY, SECOND, Office
from tidings.delivery.filing import notification_key
from tidings.delivery.sweeping import Sweeper
from tidings.domain.notifications.notification import GROUP


async def forget(office: Office) -> None:
    """Let so much time pass that finished schedules are no longer known."""
    office.clock.advance(8 * DAY)
    for _ in range(20):
        await office.store.tend(office.clock.now())
        office.clock.advance(2 * SECOND)


async def is_kept(office: Office, name: str) -> bool:
    [there] = await office.documents.get([notification_key(ACME, name)], office.clock.now())
    return there is not None


async def test_what_waits_for_a_worker_longer_than_its_schedule_is_known_is_not_swept(office: Office) -> None:
    sweeper = Sweeper(office.store, office.sweeping, office.clock)
    await office.notify(id="visa", user="ada", words={"text": "Your visa ends"}, channel="email", at="P32D")
    office.clock.advance(33 * DAY)
    [record] = await office.release("notify.email")
    await forget(office)
    assert await office.engine.find(ACME, "visa") is None
    await sweeper.round()
    assert await is_kept(office, "visa")
    await office.store.commit(ACME, "notify.email", GROUP, {record.partition: record.offset + 1})
    await sweeper.round()
    assert not await is_kept(office, "visa")


async def test_what_waits_for_another_try_for_longer_than_that_can_be_cancelled(office: Office) -> None:
    for name in ("waits", "went"):
        await office.notify(id=name, user="ada", words={"text": "Hi"}, channel="email")
    await office.release("notify.email")
    await office.deliver("waits", state="pending", reason="credentials_refused", provider_id=None)
    await office.deliver("went")
    await forget(office)
    assert (await office.cancelling.cancel(ACME, "went")).outcome == "already_released"
    assert (await office.cancelling.cancel(ACME, "waits")).outcome == "cancelled"
    delivery, status = await office.lookup.delivery(ACME, "waits/1"), await office.lookup.get(ACME, "waits")
    assert delivery is not None
    assert status is not None
    assert (delivery.state, status.state) == ("cancelled", "cancelled")


async def test_what_no_worker_has_read_for_longer_than_that_can_be_cancelled(office: Office) -> None:
    await office.notify(id="unread", user="ada", words={"text": "Hi"}, channel="email")
    await office.release("notify.email")
    await forget(office)
    assert (await office.cancelling.cancel(ACME, "unread")).outcome == "cancelled"
    status = await office.lookup.get(ACME, "unread")
    assert status is not None
    assert status.state == "cancelled"  # and a worker that comes back leaves it where it is


async def test_what_no_worker_has_read_does_not_give_way_to_a_duplicate(office: Office) -> None:
    """Nobody can say any more that it was accepted: the later one goes too, but not instead of it."""
    asked = {"user": "ada", "words": {"text": "Hi"}, "channel": "email", "dedupe_key": "k", "dedupe_window": "P30D"}
    await office.notify(id="unread", **asked)
    await office.release("notify.email")
    await forget(office)
    assert (await office.notify(id="later", **asked)).outcome == "scheduled"
    assert await is_kept(office, "unread")
