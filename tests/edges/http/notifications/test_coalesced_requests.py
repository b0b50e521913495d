"""Single requests that are sent concurrently get the results that they would get one by one, in fewer transactions."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.contract.stores import opened
from tests.delivery.services import ACME, ADA, Services
from tests.edges.http.notifications.notification_server import NotificationServer
from tidings.delivery.accept.request import AcceptResult
from tidings.delivery.templates import EmailPart, Parts
from tidings.domain.errors import Invalid, StoreError
from tidings.edges.http.notifications.lines import CoalescedRequests
from tidings.ports.tables import BulkGroups, ChangeGroup, GroupResult
from tidings.shapes.notification import NewTemplate
from tidings.testing import SimulatedClock

LIST = "/v1/notifications"
USERS = [f"u{number}" for number in range(40)]
ROUNDS = 25


@pytest.fixture(params=["memory", "sqlite"])
async def sides(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Services, Services]]:
    """Two equal stores."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with opened(request.param, folders[0]) as one, opened(request.param, folders[1]) as other:
        both = Services(one, SimulatedClock()), Services(other, SimulatedClock())
        for side in both:
            parts = Parts(email={"en": EmailPart("Hi {{ name }}", text="{{ what }}")})
            await side.templates.put(ACME, "reminder", NewTemplate(parts))
            for user in USERS:
                await side.users.put(ACME, user, ADA)
        yield both


class Commits:
    """Counts what is committed, in bulk and otherwise."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.in_bulk = 0
        self.error: Exception | None = None
        self._commit = services.store.tables.commit
        monkeypatch.setattr(services.store.tables, "commit", self._counted)

    async def _counted(self, groups: Sequence[ChangeGroup], now: int, *, urgent: bool = False) -> list[GroupResult]:
        if self.error is not None:
            raise self.error
        self.sizes.append(len(groups))
        self.in_bulk += len(groups) if isinstance(groups, BulkGroups) else 0
        return await self._commit(groups, now, urgent=urgent)


def body(**given: Any) -> bytes:
    asked = {"user": "u0", "template": "reminder", "variables": {"what": "tea"}, "at": "+1h"}
    return json.dumps(asked | given).encode()


def any_body(rng: random.Random) -> bytes:
    """A body that may be like others, look like others without being so, or be wrong."""
    given: dict[str, Any] = {"user": rng.choice([*USERS, "nobody"])}
    others: list[dict[str, Any]] = [
        {"variables": {"what": "tea", "user": rng.choice(USERS)}},
        {"variables": {"what": f'"user": "{rng.choice(USERS)}"'}},
        {"variables": {}},
        {"id": f"id-{rng.randrange(10)}"},
        {"dedupe_key": "once"},
        {"user": None, "users": rng.sample(USERS, 3)},
        {"user": None, "to": "ada@example.com", "channel": "email"},
        {"at": "noonish"},
        {"at": 5},
        {"template": "unknown"},
    ]
    if rng.random() < 0.3:
        given |= rng.choice(others)
    text = body(**given)
    if rng.random() < 0.5:
        fields = json.loads(text)
        text = json.dumps({name: fields[name] for name in sorted(fields, reverse=True)}).encode()
    return text.replace(b'"user"', b'"\\u0075ser"') if rng.random() < 0.05 else text


async def accept(services: Services, requests: CoalescedRequests, text: bytes) -> list[Any] | str:
    """What the edge does with a body; the results without ids that are made at random."""
    try:
        found = await requests.accept(ACME, text)
        results = [found] if isinstance(found, AcceptResult) else await services.acceptance.accept(ACME, found)
    except Invalid as invalid:
        return str(invalid)
    return [_without_made_ids(each) for each in results]


def _without_made_ids(result: AcceptResult) -> AcceptResult:
    own = result.id if result.id.startswith("id-") else ""
    return msgspec.structs.replace(result, id=own, batch=None, first=result.first and "first")


@pytest.mark.slow
async def test_concurrent_requests_are_accepted_as_one_by_one(
    sides: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(14)
    commits = Commits(sides[0], monkeypatch)
    together, alone = (CoalescedRequests(side.acceptance) for side in sides)
    for number in range(ROUNDS):
        bodies = [any_body(rng) for _ in range(60)]
        # Of several with one id or one dedupe key, which is first is not defined: one of each kind is enough.
        for mark in (b'"id":', b'"dedupe_key":'):
            extra = [each for each in bodies if mark in each][1:]
            bodies = [each for each in bodies if each not in extra]
        found = await asyncio.gather(*(accept(sides[0], together, each) for each in bodies))
        expected = [await accept(sides[1], alone, each) for each in bodies]
        assert found == expected, number
        assert not together._callers
        for side in sides:
            side.clock.advance(1_000)
    assert commits.in_bulk > ROUNDS * 16


async def test_coalesced_requests_need_few_transactions_and_every_user_has_a_notification(
    sides: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, requests = sides[0], CoalescedRequests(sides[0].acceptance)
    commits = Commits(services, monkeypatch)
    found = await asyncio.gather(*(requests.accept(ACME, body(user=user)) for user in USERS * 2))
    assert len(commits.sizes) <= 4, commits.sizes
    results = [each for each in found if isinstance(each, AcceptResult)]
    assert [each.user for each in results] == USERS * 2
    assert len({each.id for each in results}) == len(USERS) * 2
    for each in results:
        status = await services.reader.get(ACME, each.id)
        assert status is not None
        assert (status.notification.user, status.state) == (each.user, "pending")


async def test_requests_of_two_tenants_are_kept_apart(sides: tuple[Services, Services]) -> None:
    requests = CoalescedRequests(sides[0].acceptance)
    tenants = [ACME, "other"] * len(USERS)
    calls = [requests.accept(tenant, body(user=user)) for tenant, user in zip(tenants, USERS * 2, strict=True)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    kinds = [Counter(type(each) for each in found[start::2]) for start in (0, 1)]
    assert kinds == [{AcceptResult: len(USERS)}, {Invalid: len(USERS)}]


async def test_an_error_of_the_store_is_raised_for_all_that_wait_and_for_no_later_one(
    sides: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, requests = sides[0], CoalescedRequests(sides[0].acceptance)
    commits = Commits(services, monkeypatch)
    commits.error = StoreError("the disk is full")
    calls = [requests.accept(ACME, body(user=user)) for user in USERS]
    assert {type(each) for each in await asyncio.gather(*calls, return_exceptions=True)} == {StoreError}
    commits.error = None
    result = await requests.accept(ACME, body())
    assert isinstance(result, AcceptResult)
    assert not requests._callers


async def test_an_error_after_the_bulk_was_committed_is_that_of_the_others_alone(
    sides: tuple[Services, Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    services, requests = sides[0], CoalescedRequests(sides[0].acceptance)

    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(services.acceptance, "accept_many", fail)
    users = [*USERS, "nobody"]
    found = await asyncio.gather(*(requests.accept(ACME, body(user=user)) for user in users), return_exceptions=True)
    assert {type(each) for each in found[2:-1]} == {AcceptResult}, "the second caller is a batch of its own"
    assert isinstance(found[-1], StoreError)


async def test_a_caller_who_leaves_takes_nobody_along(sides: tuple[Services, Services]) -> None:
    requests = CoalescedRequests(sides[0].acceptance)
    calls = [asyncio.create_task(requests.accept(ACME, body(user=user))) for user in USERS]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # the first one, alone
    for call in calls[2::2]:
        call.cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [each.user for each in found[1::2] if isinstance(each, AcceptResult)] == USERS[1::2]
    assert {type(each) for each in found[2::2]} == {asyncio.CancelledError}
    assert not requests._callers


async def test_concurrent_posts_are_answered_each_for_its_own_user(server_on_each_store: NotificationServer) -> None:
    server = server_on_each_store
    await server.create_users(*USERS[:20])
    asked = {"template": "reminder", "variables": {"what": "tea"}, "at": "+1h"}
    users = [*USERS[:20], "nobody"] * 3
    replies = await asyncio.gather(*(server.call("POST", LIST, asked | {"user": user}) for user in users))
    for user, reply in zip(users, replies, strict=True):
        if user == "nobody":
            assert (reply.status, reply.document["errors"][0]["field"]) == (400, "user")
            continue
        assert (reply.status, reply.document["user"], reply.document["outcome"]) == (201, user, "scheduled")
        assert reply.headers["location"] == f"{LIST}/{reply.document['id']}"
        assert (await server.ok("GET", reply.headers["location"]))["user"] == user


def nested(other: str, user: str) -> bytes:
    """A request with a variable named `user` before its own user."""
    return b'{"variables": {"what": "tea", "user": "%s"}, "template": "reminder", "user": "%s"}' % (
        other.encode(),
        user.encode(),
    )


async def test_a_variable_named_user_is_not_the_user(sides: tuple[Services, Services]) -> None:
    services, requests = sides[0], CoalescedRequests(sides[0].acceptance)
    bodies = [nested(other, "u1") for other in ("u1", *USERS)]
    found = await asyncio.gather(*(accept(services, requests, each) for each in bodies))
    assert [each[0].user for each in found if isinstance(each[0], AcceptResult)] == ["u1"] * len(bodies)


async def test_of_concurrent_requests_with_one_id_one_is_accepted(sides: tuple[Services, Services]) -> None:
    services, requests = sides[0], CoalescedRequests(sides[0].acceptance)
    found = await asyncio.gather(*(accept(services, requests, body(user=user, id="id-1")) for user in USERS))
    outcomes = Counter(each[0].outcome for each in found if isinstance(each[0], AcceptResult))
    assert outcomes == {"scheduled": 1, "conflict": len(USERS) - 1}
