"""Suppressed addresses and the ways out, over HTTP."""

import msgspec

from tests.edges.http.notifications.notification_server import NINE, Desk
from tidings.delivery.breakers import breaker_put
from tidings.delivery.ways import RECEIVERS_MAX
from tidings.domain.fleet import Report
from tidings.domain.notifications.circuit_breaker import Breaker
from tidings.edges.http.inputs import QUERY_BYTES_MAX
from tidings.ports import Key

LIST = "/v1/suppressions"
ADA = f"{LIST}/email/ada%40example.com"


async def test_nothing_is_sent_to_a_suppressed_address(each_desk: Desk) -> None:
    await each_desk.welcome()
    added = await each_desk.call("PUT", ADA, {"reason": "asked by telephone"})
    assert (added.status, added.document["outcome"]) == (201, "suppressed")
    again = await each_desk.call("PUT", ADA)
    assert (again.status, again.document["outcome"]) == (200, "unchanged")
    told = await each_desk.done("POST", "/v1/notifications", NINE)
    assert (await each_desk.settled(told["id"], "skipped"))["reason"] == "suppressed"
    [kept] = (await each_desk.done("GET", f"{LIST}?channel=email"))["suppressions"]
    assert (kept["address"], kept["reason"]) == ("ada@example.com", "asked by telephone")
    assert (await each_desk.done("GET", f"{LIST}?channel=sms"))["suppressions"] == []
    assert (await each_desk.done("DELETE", ADA))["outcome"] == "removed"
    assert (await each_desk.call("DELETE", ADA)).status == 404
    told = await each_desk.done("POST", "/v1/notifications", NINE)
    await each_desk.settled(told["id"])


async def test_of_each_channel_and_by_category(desk: Desk) -> None:
    token = "ab" * 32
    paths = [
        f"{LIST}/email/ada%40example.com",
        f"{LIST}/sms/%2B15550100",
        f"{LIST}/push/apns:{token}",
        f"{LIST}/webhook/https:%2F%2Fhooks.example%2Fin",
        f"{LIST}/in_app/ada",
    ]
    for path in paths:
        assert (await desk.call("PUT", path, {"category": "news"})).status == 201, path
    first = await desk.done("GET", f"{LIST}?limit=3")
    rest = await desk.done("GET", f"{LIST}?limit=3&cursor={first['cursor']}")
    found = first["suppressions"] + rest["suppressions"]
    assert [each["channel"] for each in found] == ["in_app", "webhook", "push", "sms", "email"]
    assert {each["category"] for each in found} == {"news"}
    assert found[1]["address"] == "https://hooks.example/in"
    assert (await desk.call("DELETE", paths[0])).status == 404
    for path in paths:
        assert (await desk.call("DELETE", f"{path}?category=news")).status == 200, path


async def test_wrong_requests(desk: Desk) -> None:
    for path, document in (
        (f"{LIST}/fax/1", {}),
        (f"{LIST}/email/nope", {}),
        (f"{LIST}/push/palm:1", {}),
        (f"{LIST}/sms/1", {}),
        (ADA, {"category": "transactional"}),
        (ADA, {"reason": ""}),
        (ADA, {"reason": "x" * 201}),
        (ADA, {"resaon": "x"}),
    ):
        assert (await desk.call("PUT", path, document)).status == 400, path
    assert (await desk.call("GET", f"{LIST}?channel=fax")).status == 400
    assert (await desk.call("GET", f"{LIST}?cursor={'9' * QUERY_BYTES_MAX}")).status == 400
    assert (await desk.call("GET", ADA)).status == 405


async def test_the_ways_out_are_shown_without_secrets(desk: Desk) -> None:
    shown = await desk.done("GET", "/v1/channels")
    mail, outbox = shown["providers"]
    assert mail == {
        "name": "mail",
        "provider": "smtp",
        "channels": ["email"],
        "breaker": "closed",
        "limit": {"per_s": 1_000, "burst": 100},
        "tenant_limit": {"per_s": 500, "burst": 50},
    }
    assert (outbox["name"], "limit" in outbox) == ("outbox", False)
    assert shown["channels"]["email"] == ["mail", "outbox"]
    clock = desk.site.engine.clock
    broken = Breaker(clock.now() + 60_000_000, reason="credentials_refused")
    key = Key("", "breaker", "mail")
    await desk.site.engine.store.documents.change([[breaker_put(key, broken, 0)]], clock.now())
    [mail, _] = (await desk.done("GET", "/v1/channels"))["providers"]
    assert (mail["breaker"], mail["reason"], "until" in mail) == ("open", "credentials_refused", True)
    text = (await desk.call("GET", "/v1/channels")).body
    assert b"whsec" not in text
    assert b"token" not in text


async def test_a_provider_that_refuses_the_credentials_is_a_notice_until_its_breaker_is_closed(desk: Desk) -> None:
    clock, cabinet = desk.site.engine.clock, desk.site.engine.store.documents
    over = Breaker(clock.now() - 1, reason="credentials_refused", detail="535 no")
    waits = Breaker(clock.now() + 60_000_000, reason="timeout")
    keys = Key("", "breaker", "mail"), Key("", "breaker", "outbox")
    await cabinet.change([[breaker_put(keys[0], over, 0), breaker_put(keys[1], waits, 0)]], clock.now())
    ready = await desk.done("GET", "/readyz")
    assert ready["notices"] == ["mail rejects our requests (credentials_refused: 535 no)"], "also while it is half open"
    closed = await desk.done("POST", "/v1/channels/mail/close")
    assert closed == {"name": "mail", "outcome": "closed"}
    assert "notices" not in await desk.done("GET", "/readyz")
    assert (await desk.done("POST", "/v1/channels/mail/close"))["outcome"] == "unchanged"
    assert (await desk.call("POST", "/v1/channels/nobody/close")).status == 404
    assert (await desk.call("POST", "/v1/channels/mail/close", {"x": 1})).status == 400


async def test_open_breakers_of_webhook_receivers_are_shown_to_their_tenant(desk: Desk) -> None:
    clock, cabinet = desk.site.engine.clock, desk.site.engine.store.documents
    waits = Breaker(clock.now() + 60_000_000, reason="timeout")
    names = [f"outbox https://{k:03}.example" for k in range(RECEIVERS_MAX + 1)]
    groups = [[breaker_put(Key(tenant, "breaker", name), waits, 0)] for name in names for tenant in ("default", "b")]
    await cabinet.change(groups, clock.now())
    [mail, outbox] = (await desk.done("GET", "/v1/channels"))["providers"]
    assert "receivers" not in mail
    assert (len(outbox["receivers"]), outbox["more_receivers"]) == (RECEIVERS_MAX, True)
    shown = outbox["receivers"][0]
    assert (shown["receiver"], shown["breaker"], shown["reason"]) == ("https://000.example", "open", "timeout")
    assert "until" in shown
    for name in names[1:]:
        receiver = name.removeprefix("outbox ")
        await desk.done("POST", f"/v1/channels/outbox/close?receiver={receiver}")
    [_, outbox] = (await desk.done("GET", "/v1/channels"))["providers"]
    assert ([each["receiver"] for each in outbox["receivers"]], "more_receivers" in outbox) == (
        ["https://000.example"],
        False,
    )
    found = await cabinet.find("b", "breaker", "all", clock.now(), limit=1_000)
    assert len(found) == RECEIVERS_MAX + 1, "those of others are theirs"


async def test_a_fleet_without_workers_is_a_notice(desk: Desk) -> None:
    engine = desk.site.engine
    assert "notices" not in await desk.done("GET", "/readyz")
    engine.settings = msgspec.structs.replace(engine.settings, about=Report("front", ("api", "dispatch")))
    await engine.store.acquire(engine.clock.elapsed(), 60_000_000, engine.report())
    [notice] = (await desk.done("GET", "/readyz"))["notices"]
    assert notice.startswith("no live node has the role deliver")
