"""Changes of notifications against the worker that sends them."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.delivery.world import MS, TENANT, Recorder, World, ada, started_world
from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.change import NotificationChanges
from tidings.delivery.accept.request import NotificationRequest
from tidings.domain.notifications.delivery import Temporary, Verdict
from tidings.domain.notifications.message import Email, Rendered
from tidings.domain.notifications.notification import InlineContent
from tidings.domain.schedules.iso8601 import format_instant
from tidings.testing import eventually

COUNT = 200


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with started_world() as world:
        await world.put_user(ada())
        yield world


@pytest.mark.slow
async def test_after_replaced_nothing_is_sent_with_the_former_content(world: World) -> None:
    """Each is changed at about the moment when it is due; only some of the changes come in time."""
    mail = Recorder("email")
    world.start(world.worker({"mail": mail}))
    acceptance = Acceptance(world.store.tables, world.engine, world.templates, world.clock)
    changes = NotificationChanges(world.store.tables, world.engine, acceptance, world.clock)
    due = world.clock.now() + 20 * MS
    requests = [
        NotificationRequest(
            id=f"n-{n}", user="ada", channel="email", content=InlineContent("old"), at=format_instant(due + n * MS)
        )
        for n in range(COUNT)
    ]
    await acceptance.accept_many(TENANT, requests)
    order = [*range(0, COUNT, 2), *range(COUNT - 1, 0, -2)]  # some early, some late
    patched = [await changes.patch(TENANT, f"n-{n}", {"content": {"text": "new"}}) for n in order]
    outcomes = [outcome.outcome for _, outcome in sorted(zip(order, patched, strict=True), key=lambda each: each[0])]
    names = [f"n-{n}/2.1" if word == "replaced" else f"n-{n}/1" for n, word in enumerate(outcomes)]
    await world.settled(*names)
    sent = {each.id: each.text for each in mail.calls if isinstance(each, Email)}
    assert len(mail.calls) == COUNT
    assert {sent[name] for name in names if "/2." in name} <= {"new"}
    assert {sent[name] for name in names if "/2." not in name} <= {"old"}
    assert {"replaced", "already_released", "in_flight"} >= set(outcomes)


@pytest.mark.slow
async def test_a_change_of_a_deferred_notification_against_the_worker(world: World) -> None:
    """Each waits for its next turn and is changed at about that moment: it is sent once, with one content."""
    mail = Recorder("email")
    seen: Counter[str] = Counter()

    def answer(message: Rendered) -> Verdict | None:
        seen[message.id] += 1
        first = "/1" in message.id and "." not in message.id and seen[message.id] == 1
        return Temporary("rate_limited", retry_after_us=30 * MS) if first else None

    mail.answer = answer
    world.start(world.worker({"mail": mail}))
    acceptance = Acceptance(world.store.tables, world.engine, world.templates, world.clock)
    changes = NotificationChanges(world.store.tables, world.engine, acceptance, world.clock)
    requests = [
        NotificationRequest(id=f"n-{n}", user="ada", channel="email", content=InlineContent("old"))
        for n in range(COUNT)
    ]
    await acceptance.accept_many(TENANT, requests)
    patched = [await changes.patch(TENANT, f"n-{n}", {"content": {"text": "new"}}) for n in range(COUNT)]
    outcomes = [outcome.outcome for outcome in patched]
    names = [f"n-{n}/2.1" if word == "replaced" else f"n-{n}/1" for n, word in enumerate(outcomes)]
    await world.settled(*names)
    assert {"replaced", "already_released", "in_flight"} >= set(outcomes)
    assert "replaced" in outcomes
    for n, word in enumerate(outcomes):
        got = mail.took[f"n-{n}/1"], mail.took[f"n-{n}/2.1"]
        assert got == ((0, 1) if word == "replaced" else (1, 0)), (n, word)
    sent = [each for each in mail.calls if isinstance(each, Email)]
    assert all(each.text == ("new" if "/2." in each.id else "old") for each in sent)


@pytest.mark.parametrize(
    ("before", "after", "sent"),
    [
        ({"channel": "email"}, {"channels": ["email", "sms"], "spread": "all"}, {"n/2.1/email", "n/2.1/sms"}),
        ({"channels": ["email", "sms"], "spread": "all"}, {"channel": "email"}, {"n/2.1"}),
        ({"channel": "email"}, {"content": {"text": "new"}}, {"n/2.1"}),
    ],
)
async def test_what_was_released_before_a_change_is_not_sent(
    world: World, before: dict[str, Any], after: dict[str, Any], sent: set[str]
) -> None:
    """Its record is on its topic, names no delivery, and must not become one of the changed notification."""
    acceptance = Acceptance(world.store.tables, world.engine, world.templates, world.clock)
    changes = NotificationChanges(world.store.tables, world.engine, acceptance, world.clock)
    await acceptance.accept(TENANT, NotificationRequest(id="n", user="ada", content=InlineContent("old"), **before))

    async def is_released() -> bool:
        schedule = await world.engine.find(TENANT, "n")
        return schedule is not None and schedule.state == "released"

    await eventually(is_released)
    changed = await changes.patch(TENANT, "n", after)
    assert changed.outcome == "replaced"
    await eventually(is_released)
    provider = Recorder()
    world.start(world.worker({"all": provider}))
    await world.settled(*sent)
    await acceptance.accept(
        TENANT, NotificationRequest(id="m", user="ada", channel="email", content=InlineContent("x"))
    )
    await world.settled("m/1")  # what was released before it has been read
    assert {each.id for each in provider.calls} == sent | {"m/1"}
    assert len(provider.calls) == len(sent) + 1
