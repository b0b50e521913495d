"""Records that clients publish on notification topics, and which of them are delivery jobs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.delivery.world import TENANT, Recorder, ada, schedule, started_world, states, words
from tidings.delivery.worker import job as jobs
from tidings.domain.errors import Invalid
from tidings.domain.facts import Poisoned
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.notifications.delivery import Temporary
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.schedules.schedule import LIMITS_MOST, Record, unpack
from tidings.testing import eventually
from tidings.timeline.sqlite.store import SqliteStore

LONGEST = "é" * (jobs.NOTIFICATION_BYTES_MAX // 2)


def record(message: bytes) -> Record:
    return Record("notify.email", 0, 0, "r-1", 1, 1, 0, 0, message)


def carried(**changes: Any) -> DeliveryJob:
    inline = words("n-1", user=None, to="ada@example.com")
    return DeliveryJob(inline=msgspec.structs.replace(inline, **changes))


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (carried(id=f"{LONGEST}x"), "id"),
        (carried(id="a\0b"), "id"),
        (carried(user="a\0b"), "user"),
        (carried(user="u" * 3_000), "user"),
        (carried(template="t\0"), "template"),
        (carried(category="c\0"), "category"),
        (carried(channels=("email",) * 2), "channels"),
        (DeliveryJob("n" * 3_000), "notification"),
        (DeliveryJob("n\0"), "notification"),
        (DeliveryJob("n", delivery="d" * 3_000), "delivery"),
        (DeliveryJob("n", delivery="d\n"), "delivery"),
        (DeliveryJob("n", delivery=""), "delivery"),
        (DeliveryJob("n", attempt=10**18), "attempt"),
        (DeliveryJob("n", attempt=0), "attempt"),
    ],
)
def test_a_job_that_no_store_can_hold_is_invalid(job: DeliveryJob, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        jobs.read_job(record(jobs.job_message(job)), TENANT)
    assert refused.value.field == field


def test_retries_of_the_longest_valid_job_can_be_stored() -> None:
    notification = Notification(LONGEST, TENANT, ("webhook",), spread="all", to="https://hooks.example/in")
    released = msgspec.structs.replace(
        record(jobs.job_message(DeliveryJob(inline=notification))), generation=10**9, number=10**15
    )
    job = jobs.read_job(released, TENANT)
    assert job.inline is not None
    going_on = msgspec.structs.replace(
        job, delivery=jobs.delivery_name_of(job, released, job.inline), attempt=jobs.ATTEMPT_MAX
    )
    assert jobs.read_job(record(jobs.job_message(going_on)), TENANT) == going_on
    longest = msgspec.structs.replace(going_on, delivery="d" * jobs.DELIVERY_BYTES_MAX)
    for each in (going_on, longest):
        name = jobs.retry_schedule(TENANT, job.inline, each, 0).id
        assert name is not None
        assert len(f"{name}~dead".encode()) <= ID_BYTES_MOST


async def test_the_longest_valid_job_is_retried_on_sqlite(tmp_path: Path) -> None:
    async with started_world(await SqliteStore.open(tmp_path / "t.db")) as world:
        await world.put_user(ada())
        provider = Recorder()
        provider.answer = lambda _: Temporary("provider_error") if len(provider.calls) == 1 else None
        world.start(world.worker({"mail": provider}))
        name = "n" * LIMITS_MOST["id_bytes_max"]
        await world.notify(words(name))
        [delivery] = await world.settled(f"{name}/1")
        assert (delivery.state, len(delivery.attempts)) == ("sent", 2)


def test_an_unreadable_message_becomes_a_dead_letter_unchanged() -> None:
    came = record(b"mangled")
    with pytest.raises(Invalid, match="is not a valid delivery record"):
        jobs.read_job(came, TENANT)
    assert unpack(jobs.poison_record(TENANT, came, "is not a valid delivery record", 0).message).value == b"mangled"


async def test_poison_messages_of_one_tenant_do_not_affect_another() -> None:
    async with started_world() as world:
        await world.put_user(ada())
        provider = Recorder()
        now, names = world.clock.now(), [f"n-{number}" for number in range(20)]
        bad = DeliveryJob(inline=words("x" * 3_000, user=None, to="m@example.com"))
        theirs = [
            msgspec.structs.replace(schedule(words(f"s-{number}"), now, bad), tenant="evil") for number in range(5)
        ]
        await world.engine.submit(theirs)
        await world.notify(*(words(name) for name in names))
        world.start(world.worker({"mail": provider}))
        assert states(await world.settled(*(f"{name}/1" for name in names))) == {"sent": 20}
        poisoned = await eventually(lambda: len([fact for fact in world.facts if isinstance(fact, Poisoned)]) == 5)
        assert poisoned
        assert provider.accepted == {f"{name}/1": 1 for name in names}
