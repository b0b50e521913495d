"""Suppressions and providers over HTTP."""

import msgspec

from tests.edges.http.notifications.notification_server import NINE, NotificationServer
from tidings.delivery.limits.circuit_breaker import breaker_put
from tidings.delivery.limits.provider_status import RECEIVERS_MAX
from tidings.delivery.rows import change
from tidings.domain.fleet import Report
from tidings.domain.notifications.circuit_breaker import Breaker
from tidings.domain.notifications.tables import CIRCUIT_BREAKERS, SHARED
from tidings.edges.http.inputs import QUERY_BYTES_MAX
from tidings.ports.tables import RowKey

LIST = "/v1/suppressions"
ADA = f"{LIST}/email/ada%40example.com"


async def test_nothing_is_sent_to_a_suppressed_address(server_on_each_store: NotificationServer) -> None:
    await server_on_each_store.create_users()
    added = await server_on_each_store.call("PUT", ADA, {"reason": "asked by telephone"})
    assert (added.status, added.document["outcome"]) == (201, "suppressed")
    again = await server_on_each_store.call("PUT", ADA)
    assert (again.status, again.document["outcome"]) == (200, "unchanged")
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE)
    assert (await server_on_each_store.settled(accepted["id"], "skipped"))["reason"] == "suppressed"
    [kept] = (await server_on_each_store.ok("GET", f"{LIST}?channel=email"))["suppressions"]
    assert (kept["address"], kept["reason"]) == ("ada@example.com", "asked by telephone")
    assert (await server_on_each_store.ok("GET", f"{LIST}?channel=sms"))["suppressions"] == []
    assert (await server_on_each_store.ok("DELETE", ADA))["outcome"] == "removed"
    assert (await server_on_each_store.call("DELETE", ADA)).status == 404
    accepted = await server_on_each_store.ok("POST", "/v1/notifications", NINE)
    await server_on_each_store.settled(accepted["id"])


async def test_suppressions_by_channel_and_category(server: NotificationServer) -> None:
    token = "ab" * 32
    paths = [
        f"{LIST}/email/ada%40example.com",
        f"{LIST}/sms/%2B15550100",
        f"{LIST}/push/apns:{token}",
        f"{LIST}/webhook/https:%2F%2Fhooks.example%2Fin",
        f"{LIST}/in_app/ada",
    ]
    for path in paths:
        assert (await server.call("PUT", path, {"category": "news"})).status == 201, path
    first = await server.ok("GET", f"{LIST}?limit=3")
    rest = await server.ok("GET", f"{LIST}?limit=3&cursor={first['cursor']}")
    found = first["suppressions"] + rest["suppressions"]
    assert [each["channel"] for each in found] == ["in_app", "webhook", "push", "sms", "email"]
    assert {each["category"] for each in found} == {"news"}
    assert found[1]["address"] == "https://hooks.example/in"
    assert (await server.call("DELETE", paths[0])).status == 404
    for path in paths:
        assert (await server.call("DELETE", f"{path}?category=news")).status == 200, path


async def test_wrong_requests(server: NotificationServer) -> None:
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
        assert (await server.call("PUT", path, document)).status == 400, path
    assert (await server.call("GET", f"{LIST}?channel=fax")).status == 400
    assert (await server.call("GET", f"{LIST}?cursor={'9' * QUERY_BYTES_MAX}")).status == 400
    assert (await server.call("GET", ADA)).status == 405


async def test_providers_are_shown_without_secrets(server: NotificationServer) -> None:
    shown = await server.ok("GET", "/v1/channels")
    mail, files = shown["providers"]
    assert mail == {
        "name": "mail",
        "provider": "smtp",
        "channels": ["email"],
        "breaker": "closed",
        "limit": {"per_s": 1_000, "burst": 100},
        "tenant_limit": {"per_s": 500, "burst": 50},
    }
    assert (files["name"], "limit" in files) == ("files", False)
    assert shown["channels"]["email"] == ["mail", "files"]
    clock = server.site.engine.clock
    broken = Breaker(clock.now() + 60_000_000, reason="credentials_refused")
    key = RowKey("circuit_breaker", SHARED, "mail")
    await change(server.site.engine.store.tables, [[breaker_put(key, broken, 0)]], clock.now())
    [mail, _] = (await server.ok("GET", "/v1/channels"))["providers"]
    assert (mail["breaker"], mail["reason"], "until" in mail) == ("open", "credentials_refused", True)
    text = (await server.call("GET", "/v1/channels")).body
    assert b"whsec" not in text
    assert b"token" not in text


async def test_a_provider_that_refuses_the_credentials_is_a_notice_until_its_breaker_is_closed(
    server: NotificationServer,
) -> None:
    clock, tables = server.site.engine.clock, server.site.engine.store.tables
    over = Breaker(clock.now() - 1, reason="credentials_refused", detail="535 no")
    waits = Breaker(clock.now() + 60_000_000, reason="timeout")
    keys = [RowKey("circuit_breaker", SHARED, name) for name in ("mail", "files")]
    await change(tables, [[breaker_put(keys[0], over, 0), breaker_put(keys[1], waits, 0)]], clock.now())
    ready = await server.ok("GET", "/readyz")
    assert ready["notices"] == ["mail rejects our requests (credentials_refused: 535 no)"], "also while it is half open"
    closed = await server.ok("POST", "/v1/channels/mail/close")
    assert closed == {"name": "mail", "outcome": "closed"}
    assert "notices" not in await server.ok("GET", "/readyz")
    assert (await server.ok("POST", "/v1/channels/mail/close"))["outcome"] == "unchanged"
    assert (await server.call("POST", "/v1/channels/nobody/close")).status == 404
    assert (await server.call("POST", "/v1/channels/mail/close", {"x": 1})).status == 400


async def test_open_breakers_of_webhook_receivers_are_shown_to_their_tenant(server: NotificationServer) -> None:
    clock, tables = server.site.engine.clock, server.site.engine.store.tables
    waits = Breaker(clock.now() + 60_000_000, reason="timeout")
    names = [f"files https://{k:03}.example" for k in range(RECEIVERS_MAX + 1)]
    keys = [RowKey("circuit_breaker", tenant, name) for name in names for tenant in ("default", "b")]
    await change(tables, [[breaker_put(key, waits, 0)] for key in keys], clock.now())
    [mail, files] = (await server.ok("GET", "/v1/channels"))["providers"]
    assert "receivers" not in mail
    assert (len(files["receivers"]), files["more_receivers"]) == (RECEIVERS_MAX, True)
    shown = files["receivers"][0]
    assert (shown["receiver"], shown["breaker"], shown["reason"]) == ("https://000.example", "open", "timeout")
    assert "until" in shown
    for name in names[1:]:
        receiver = name.removeprefix("files ")
        await server.ok("POST", f"/v1/channels/files/close?receiver={receiver}")
    [_, files] = (await server.ok("GET", "/v1/channels"))["providers"]
    assert ([each["receiver"] for each in files["receivers"]], "more_receivers" in files) == (
        ["https://000.example"],
        False,
    )
    found = await tables.find(CIRCUIT_BREAKERS, "b", (), clock.now(), limit=1_000)
    assert len(found) == RECEIVERS_MAX + 1, "those of others are theirs"


async def test_a_fleet_without_workers_is_a_notice(server: NotificationServer) -> None:
    engine = server.site.engine
    assert "notices" not in await server.ok("GET", "/readyz")
    engine.settings = msgspec.structs.replace(engine.settings, about=Report("front", ("api", "dispatch")))
    await engine.store.acquire(engine.clock.elapsed(), 60_000_000, engine.report())
    [notice] = (await server.ok("GET", "/readyz"))["notices"]
    assert notice.startswith("no live node has the role deliver")
