"""What is accepted in bulk is what is accepted one by one: the same rows, schedules, results and errors."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.contract.stores import opened
from tests.delivery.services import ACME, SECOND, Services
from tidings.delivery.accept import acceptance
from tidings.delivery.accept.acceptance import Acceptance
from tidings.delivery.accept.dry_run import DryRun
from tidings.delivery.accept.request import AcceptResult, NotificationRequest
from tidings.delivery.people.profile import Profile
from tidings.delivery.rows import new_notifications, notification_key, notification_put, read, user_key, user_put
from tidings.delivery.templates import EmailPart, InAppPart, Parts, SmsPart, Template, WebhookPart, compile_template
from tidings.domain.errors import Invalid, StoreError
from tidings.domain.notifications.notification import Notification
from tidings.domain.notifications.user import User
from tidings.domain.schedules.command import Add, UniformAdds
from tidings.domain.schedules.when import Once
from tidings.ports.tables import BulkGroups, ChangeGroup, GroupResult
from tidings.shapes.notification import NewTemplate
from tidings.testing import SimulatedClock
from tidings.timeline.sqlite import row_writes

SCRIPTS = 80
USERS = 24
NEVER = 1_000_000

ORDER = NewTemplate(
    Parts(
        email={
            "en": EmailPart("Hi {{ name }}", "<b>{{ name }} {{ plan }}</b>", "{{ what }} {{ n }}"),
            "de": EmailPart("Na {{ name }}", text="{{ plan | default: 'x' | upcase }} {{ what }} {{ n }}"),
        },
        sms={"en": SmsPart("{{ plan }}{{ what }}{{ n }}")},
        webhook={"en": WebhookPart({"a": "{{ name }}", "b": ["{{ n }}"], "c": "{{ what }}"})},
        in_app={"en": InAppPart("{{ what }}", "{{ plan }}{{ n }}")},
    )
)
NAMES = (None, "Ada", 'A "<&>" B', "Zoë \N{SNOWMAN}", "x" * 64, "x" * 65, "y" * 199)


class Recorder:
    """An engine that keeps what is committed."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.groups: dict[str, ChangeGroup] = {}
        self.in_bulk = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def commit(self, groups: Sequence[ChangeGroup]) -> list[GroupResult]:
        self.in_bulk += len(groups) if isinstance(groups, BulkGroups) else 0
        for group in groups:
            self.groups[group.changes[-1].key.name] = group
        results: list[GroupResult] = await self._engine.commit(groups)
        return results


class Side:
    """One of two equal stores."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.recorder = Recorder(services.engine)
        self._made = 0
        self.acceptance = Acceptance(
            services.tables, self.recorder, services.templates, services.clock, self._make_ids, has_links=False
        )

    def _make_ids(self, now: int, count: int) -> list[str]:
        self._made += count
        return [f"n_{now}_{number}" for number in range(self._made - count, self._made)]


def _profile(rng: random.Random) -> Profile:
    return Profile(
        name=rng.choice(NAMES),
        email=rng.choice((None, "a@example.com")),
        phone=rng.choice((None, "+15550100")),
        webhook=rng.choice((None, "https://hooks.example/in")),
        zone=rng.choice(("UTC", "UTC", "Europe/Berlin", "America/New_York")),
        locale=rng.choice((None, None, "de", "pt-BR")),
        variables=rng.choice(({}, {"plan": "gold"}, {"plan": "a\nb"}, {"plan": " "}, {"plan": "p" * 1_700, "n": "7"})),
    )


def _asked(rng: random.Random, clock: SimulatedClock) -> dict[str, Any]:
    asked: dict[str, Any] = {"variables": {"what": rng.choice(("tea", 7, "", "a\nb", "t" * 400, [1, 2])), "n": 12}}
    asked["template"] = "order"
    if rng.random() < 0.2:
        asked = {"content": {"text": rng.choice(("Hi", "x" * 2_000)), "title": "T"}}
    ways: list[dict[str, Any]] = [{"channel": "email"}, {"channels": ["sms", "email"]}, {"channels": "all"}, {}, {}]
    asked |= rng.choice(ways)
    times: list[dict[str, Any]] = [
        {},
        {"at": "+5s"},
        {"at": "tomorrow 09:00"},
        {"at": "2026-11-20T09:00:00"},
        {"at": "2020-01-01T00:00:00Z"},
        {"at": "2020-01-01T00:00:00Z", "past": "refuse"},
        {"at": "2020-01-01T00:00:00Z", "expires_after": "PT1H"},
        {"at": "2099-01-01T00:00:00Z"},
        {"at": "never"},
        {"cron": "0 9 * * *"},
        {"every": "PT1H", "count": 3},
        {"at": "+1h", "jitter": "PT10S"},
    ]
    asked |= rng.choice(times)
    for name, values in {
        "priority": ("normal", "high", "low"),
        "category": ("transactional", "news"),
        "batch": (None, "b1"),
        "locale": (None, "de"),
        "expires_after": (None, "PT2H"),
        "collapse": (None, "k"),
        "dedupe_key": (None, None, None, "once"),
        "version": (None, "current"),
    }.items():
        value = rng.choice(values)
        if value is not None and not (name == "version" and "content" in asked):
            asked.setdefault(name, value)
    return asked


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    async with opened("memory", tmp_path) as one, opened("memory", tmp_path) as other:
        yield Side(Services(one, SimulatedClock())), Side(Services(other, SimulatedClock()))


async def _fill(sides: Sequence[Side], rng: random.Random) -> None:
    profiles = [_profile(rng) for _ in range(USERS)]
    for side in sides:
        await side.services.templates.put(ACME, "order", ORDER)
        for number, profile in enumerate(profiles):
            await side.services.users.put(ACME, f"u{number}", profile)


async def _outcome(side: Side, request: NotificationRequest) -> object:
    try:
        return await side.acceptance.accept(ACME, request)
    except Invalid as invalid:
        return str(invalid)


@pytest.mark.slow
async def test_lists_in_bulk_are_accepted_as_one_by_one(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(14)
    await _fill(sides, rng)
    for script in range(SCRIPTS):
        asked = _asked(rng, sides[0].services.clock)
        asked["users"] = [f"u{number}" for number in rng.sample(range(USERS + 2), rng.randint(16, USERS + 2))]
        if rng.random() < 0.5:
            asked["id"] = rng.choice((f"s{script}", f's"{script}\\', f"s{script // 3}"))
        request = msgspec.convert(asked, NotificationRequest)
        found = []
        for side, least in zip(sides, (16, NEVER), strict=True):
            monkeypatch.setattr(acceptance, "BULK_MIN", least)
            found.append(await _outcome(side, request))
            side.services.clock.advance(7 * SECOND)
        assert found[0] == found[1], asked
        assert sides[0].recorder.groups == sides[1].recorder.groups, asked
    assert sides[0].recorder.in_bulk > 200
    assert sides[1].recorder.in_bulk == 0


@pytest.mark.slow
async def test_requests_that_differ_only_in_their_user_are_accepted_as_one_by_one(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(15)
    await _fill(sides, rng)
    ids: list[str] = []
    for side in sides:
        monkeypatch.setattr(side.acceptance, "_make_ids", lambda now, count: [f"n_{now}_{len(ids)}"] * count)
    for _ in range(SCRIPTS):
        asked = {name: value for name, value in _asked(rng, sides[0].services.clock).items() if name != "dedupe_key"}
        request = msgspec.convert(asked, NotificationRequest)
        users = [f"u{rng.randrange(USERS + 2)}" for _ in range(30)]
        bulk = await sides[0].acceptance.accept_bulk(ACME, msgspec.structs.replace(request, user=users[0]), users)
        single = [msgspec.structs.replace(request, user=user) for user in users]
        general = await sides[1].acceptance.accept_many(ACME, single)
        assert [_plain(each) for each in bulk] == [_plain(each) for each in general], asked
        kept = [_without_ids(side.recorder.groups) for side in sides]
        assert kept[0] == kept[1], asked
        for side in sides:
            side.services.clock.advance(7 * SECOND)
    assert sides[0].recorder.in_bulk > 200


def _plain(result: Sequence[AcceptResult] | Invalid | StoreError) -> object:
    if isinstance(result, Invalid | StoreError):
        return str(result)
    return [msgspec.structs.replace(each, id="") for each in result]


def _without_ids(groups: dict[str, ChangeGroup]) -> list[bytes]:
    """What was committed, with the ids left out: they are made at random."""
    return sorted(msgspec.json.encode(group).replace(name.encode(), b"") for name, group in groups.items())


# Rendering with stand-ins


TEXTS = (
    "{{ a }}",
    "{{ a }} and {{ b }}",
    " {{ b }} ",
    "x" * 480 + "{{ a }}",
    "{{ a | upcase }}",
    "{% if a == 'tea' %}{{ c.d }}{% endif %}{{ b }}",
    "{% for x in a %}{{ x }}{% endfor %}.",
    "{{ a.size }}.",
    "{{ a }}{{ a | date: '%Y' }}",
    "{% assign b = a %}{{ b }}",
    "{{ c[b] }}.",
)
VALUES = (
    "tea",
    "t" * 64,
    "t" * 65,
    "",
    " ",
    "a\nb",
    "\x7f",
    "\u2028",
    "é" * 64,
    7,
    10**20,
    None,
    True,
    [1],
    {"d": "e"},
)


@pytest.mark.slow
def test_stand_ins_never_pass_what_would_be_refused() -> None:
    rng = random.Random(16)
    for _ in range(1_000):
        first, second, third = (rng.choice(TEXTS) for _ in range(3))
        parts = Parts(
            email={"en": EmailPart(first, second, third)},
            sms={"en": SmsPart(third)},
            webhook={"en": WebhookPart({"a": second})},
        )
        template = compile_template(Template("t", parts))
        variables = {name: rng.choice(VALUES) for name in "abc" if rng.random() < 0.8}
        own = {name: str(rng.choice(VALUES)) for name in "abc" if rng.random() < 0.5}
        user = User("u", email="a@example.com", phone="+15550100", webhook="https://hooks.example/in", variables=own)
        ask = NotificationRequest(user="u", template="t", variables=variables)
        channels = rng.choice((("email",), ("sms",), ("webhook",), ("email", "sms")))
        exact = DryRun(ACME, ask, template)
        exact._shape = None
        assert _verdict(DryRun(ACME, ask, template), channels, user) == _verdict(exact, channels, user)


def _verdict(run: DryRun, channels: Any, user: User) -> str | None:
    try:
        run.check(channels, user)
    except Invalid as invalid:
        return str(invalid)
    return None


# In every store


def _groups(services: Services, tenant: str, versions: dict[str, int], parts: int) -> BulkGroups:
    groups = new_notifications(tenant)
    due = services.clock.now() + SECOND
    shared = Add(tenant, "", "notify.email", Once(due), b"", b"", due)
    halves = UniformAdds(shared), UniformAdds(msgspec.structs.replace(shared, note="due soon"))
    for number in range(40):
        user, name = f"u{number}", f"n{number}"
        own = Notification(name, tenant, ("email",), user, created=5)
        groups.names.append(name)
        groups.own.append(user)
        groups.versions.append(versions[user] if number != 7 else versions[user] + 1)  # one was changed meanwhile
        groups.bodies.append(notification_put(own, 0).body)
        adds = halves[number // (40 // parts)]
        adds.ids.append(name)
        adds.messages.append(b"m")
        adds.contents.append(name.encode().ljust(16))
        adds.key_hashes.append(number)
        adds.labels.append(b'{"user":"%s"}' % user.encode())
    values = notification_put(Notification("", tenant, ("email",), "", created=5), 0).values
    groups.parts += [(values, adds) for adds in halves[:parts]]
    return groups


@pytest.mark.parametrize("trouble", ["none", "row", "schedule", "user"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("is_ahead", [False, True])
async def test_groups_by_column_are_groups_like_any_others(
    services: Services, trouble: str, parts: int, is_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_ahead:  # their rows are written before their transaction
        monkeypatch.setattr(row_writes, "AHEAD_ROWS", 12)
    results, rows = [], []
    for tenant in ("one", "two"):
        tables, now = services.tables, services.clock.now()
        users = [[user_put(tenant, User(f"u{number}"), 0)] for number in range(40)]
        made = await services.engine.commit([ChangeGroup(tuple(each)) for each in users])
        groups = _groups(services, tenant, {f"u{number}": result.version for number, result in enumerate(made)}, parts)
        groups.are_new = is_ahead and trouble != "row"
        if trouble == "none":
            groups.versions[7] -= 1
        if trouble == "row":
            put = notification_put(Notification("n3", tenant, ("sms",), "u3", created=1), 0)
            await services.engine.commit([ChangeGroup((put,))])
        if trouble == "schedule":
            groups.versions[7] -= 1
            due = now + SECOND
            await services.engine.submit([Add(tenant, "n5", "t", Once(due), b"other", b"x" * 16, due)])
        answers = await services.engine.commit(groups if tenant == "one" else list(groups))
        results.append([(bool(each.version), each.outcome) for each in answers])
        found = await tables.get([notification_key(tenant, name) for name in groups.names], now)
        rows.append([row and msgspec.structs.replace(read(row, Notification), tenant="") for row in found])
        for row, answer in zip(found, answers, strict=True):
            assert not answer.version or (row is not None and row.version == answer.version)
        assert (await tables.get([user_key(tenant, "u3")], now))[0] is not None
    assert results[0] == results[1]
    assert rows[0] == rows[1]
    assert sum(done for done, _ in results[0]) == {"none": 40, "row": 38, "schedule": 39, "user": 39}[trouble]
