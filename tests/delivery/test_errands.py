"""What anybody may publish on the topics of notifications, and what of it is an errand."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.delivery.world import TENANT, Recorder, ada, living, schedule, states, words
from tidings.delivery import errands
from tidings.domain.errors import Invalid
from tidings.domain.facts import Poisoned
from tidings.domain.names import ID_BYTES_MOST
from tidings.domain.notifications.delivery import Temporary
from tidings.domain.notifications.notification import DeliveryJob, Notification
from tidings.domain.schedules.request import LIMITS_MOST
from tidings.domain.schedules.schedule import Record, unpack
from tidings.testing import eventually
from tidings.timeline.sqlite.store import SqliteStore

LONGEST = "é" * (errands.NOTIFICATION_BYTES_MAX // 2)


def record(message: bytes) -> Record:
    return Record("notify.email", 0, 0, "r-1", 1, 1, 0, 0, message)


def carried(**changes: Any) -> DeliveryJob:
    inline = words("n-1", user=None, to="ada@example.com")
    return DeliveryJob(inline=msgspec.structs.replace(inline, **changes))


@pytest.mark.parametrize(
    ("errand", "field"),
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
def test_what_no_store_can_keep_is_no_errand(errand: DeliveryJob, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        errands.read(record(errands.message(errand)), TENANT)
    assert refused.value.field == field


def test_the_longest_that_is_an_errand_has_turns_that_can_be_kept() -> None:
    notification = Notification(LONGEST, TENANT, ("webhook",), spread="all", to="https://hooks.example/in")
    released = msgspec.structs.replace(
        record(errands.message(DeliveryJob(inline=notification))), generation=10**9, number=10**15
    )
    errand = errands.read(released, TENANT)
    assert errand.inline is not None
    going_on = msgspec.structs.replace(
        errand, delivery=errands.named(errand, released, errand.inline), attempt=errands.ATTEMPT_MAX
    )
    assert errands.read(record(errands.message(going_on)), TENANT) == going_on
    longest = msgspec.structs.replace(going_on, delivery="d" * errands.DELIVERY_BYTES_MAX)
    for each in (going_on, longest):
        name = errands.turn(TENANT, errand.inline, each, 0).id
        assert name is not None
        assert len(f"{name}~dead".encode()) <= ID_BYTES_MOST


async def test_the_longest_is_tried_again_on_a_file(tmp_path: Path) -> None:
    async with living(await SqliteStore.open(tmp_path / "t.db")) as world:
        await world.put_user(ada())
        provider = Recorder()
        provider.answer = lambda _: Temporary("provider_error") if len(provider.calls) == 1 else None
        world.start(world.worker({"mail": provider}))
        name = "n" * LIMITS_MOST["id_bytes_max"]
        await world.notify(words(name))
        [delivery] = await world.settled(f"{name}/1")
        assert (delivery.state, len(delivery.attempts)) == ("sent", 2)


def test_what_is_not_even_a_message_is_put_aside_as_it_came() -> None:
    came = record(b"mangled")
    with pytest.raises(Invalid, match="is not a valid delivery record"):
        errands.read(came, TENANT)
    assert unpack(errands.poison_letter(TENANT, came, "is not a valid delivery record", 0).message).value == b"mangled"


async def test_what_one_tenant_publishes_harms_no_message_of_another() -> None:
    async with living() as world:
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
        poisoned = await eventually(lambda: len([fact for fact in world.told if isinstance(fact, Poisoned)]) == 5)
        assert poisoned
        assert provider.accepted == {f"{name}/1": 1 for name in names}
