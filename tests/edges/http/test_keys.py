"""API keys: authentication, and the isolation of tenants."""

import json
from typing import Any

import pytest

from tests.edges.http.site import FAR, NDJSON, Reply, Site, serving
from tidings.edges.http.auth import KeyRing, authenticate, is_loopback, make_key
from tidings.edges.http.problems import Refusal
from tidings.testing import SimulatedClock
from tidings.timeline.memory import MemoryStore


async def made(
    site: Site, name: str, tenant: str, headers: dict[str, str] | None = None, **more: Any
) -> dict[str, str]:
    """A new key, as the header that carries it."""
    document = {"name": name, "tenant": tenant, **more}
    reply = await site.call("POST", "/v1/keys", document, headers=headers or {})
    assert reply.status == 201, reply.body
    assert reply.headers["Cache-Control"] == "no-store"
    return {"Authorization": f"Bearer {reply.document['key']}"}


async def test_keys_are_made_listed_and_revoked(each_site: Site) -> None:
    admin = await made(each_site, "boss", "default", admin=True)
    worker = await made(each_site, "worker", "acme", admin)
    listed = (await each_site.call("GET", "/v1/keys", headers=admin)).document["keys"]
    assert [(key["name"], key["tenant"], key["admin"]) for key in listed] == [
        ("boss", "default", True),
        ("worker", "acme", False),
    ]
    assert "key" not in listed[0]
    assert (await each_site.call("GET", "/v1/schedules", headers=worker)).status == 200
    for method, path, document in (
        ("GET", "/v1/keys", None),
        ("POST", "/v1/keys", {"name": "x"}),
        ("DELETE", "/v1/keys/boss", None),
    ):
        refused = await each_site.call(method, path, document, headers=worker)
        assert refused.status == 403
        assert "--admin" in refused.problem["detail"]
    revoked = await each_site.call("DELETE", "/v1/keys/worker", headers=admin)
    assert revoked.document == {"name": "worker", "revoked": True}
    assert (await each_site.call("GET", "/v1/schedules", headers=worker)).status == 401
    again = await each_site.call("DELETE", "/v1/keys/worker", headers=admin)
    assert (again.status, again.problem["title"]) == (404, "Not found")


async def test_requests_without_a_valid_key_are_refused(each_site: Site) -> None:
    await made(each_site, "boss", "default", admin=True)
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic eDp5"},
        {"Authorization": "Bearer"},
    ):
        for method, path in (("GET", "/v1/schedules"), ("POST", "/v1/schedules"), ("GET", "/v1/keys")):
            reply = await each_site.call(method, path, headers=headers)
            assert reply.status == 401
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")
            assert "tidings keys create" in reply.problem["detail"]
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        assert (await each_site.call("GET", path)).status == 200


async def test_tenants_are_isolated(each_site: Site) -> None:
    admin = await made(each_site, "boss", "default", admin=True)
    first, second = await made(each_site, "a", "acme", admin), await made(each_site, "b", "bolt", admin)

    async def both(method: str, path: str, document: Any = None) -> tuple[Reply, Reply]:
        return (
            await each_site.call(method, path, document, headers=first),
            await each_site.call(method, path, document, headers=second),
        )

    schedule = {"id": "same", "topic": "same", "at": FAR, "value": "x"}
    for reply in await both("POST", "/v1/schedules", schedule):
        assert (reply.status, reply.document["outcome"]) == (201, "scheduled")
    await each_site.call("DELETE", "/v1/schedules/same", headers=first)
    mine, yours = await both("GET", "/v1/schedules/same")
    assert (mine.document["state"], yours.document["state"]) == ("cancelled", "pending")
    line = json.dumps({"id": "only-mine", "value": "secret"}).encode()
    await each_site.call("POST", "/v1/topics/same/records", data=line, headers=first | NDJSON)
    page = await each_site.call("GET", "/v1/topics/same/records?wait=5", headers=first)
    assert [record["value"] for record in page.document["records"]] == ["secret"]
    assert (await each_site.call("GET", "/v1/topics/same/records", headers=second)).document["records"] == []
    topics = (await each_site.call("GET", "/v1/topics", headers=second)).document["topics"]
    assert sum(topic["records"] for topic in topics) == 0
    assert (await each_site.call("GET", "/v1/schedules/only-mine", headers=second)).status == 404
    for verb in ("explain", "pause", "fire"):
        method = "GET" if verb == "explain" else "POST"
        assert (await each_site.call(method, f"/v1/schedules/only-mine/{verb}", headers=second)).status == 404
    listed = (await each_site.call("GET", "/v1/schedules?state=pending", headers=second)).document["schedules"]
    assert [row["id"] for row in listed] == ["same"]
    key = {"Idempotency-Key": "same-key"}
    again = {"topic": "same", "at": FAR}
    for headers in (first, second):
        reply = await each_site.call("POST", "/v1/schedules", again, headers=headers | key)
        assert reply.status == 201


async def test_a_wrong_new_key_is_refused(site: Site) -> None:
    for document, field in (
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"name": "x", "tenant": "../etc"}, "tenant"),
        ({"name": "x", "admin": "yes"}, "admin"),
        ({"name": "x", "role": "y"}, "role"),
    ):
        reply = await site.call("POST", "/v1/keys", document)
        assert reply.status == 400, document
        assert reply.problem["errors"][0]["field"] == field
    admin = await made(site, "boss", "default", admin=True)
    taken = await site.call("POST", "/v1/keys", {"name": "boss"}, headers=admin)
    assert taken.status == 400
    assert "another name" in taken.problem["detail"]


async def test_without_keys_pages_of_other_sites_are_not_served(site: Site) -> None:
    document = {"topic": "greetings"}
    for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        reply = await site.call("POST", "/v1/schedules", document, headers=headers)
        assert reply.status == 403, headers
        assert reply.problem["title"] == "This is not allowed"
    for headers in ({"Host": "localhost:8460"}, {"Origin": site.url}, {"Host": "[::1]:8460"}):
        assert (await site.call("POST", "/v1/schedules", document, headers=headers)).status == 201


async def test_without_keys_only_this_machine_is_served() -> None:
    ring = KeyRing(MemoryStore(), SimulatedClock())
    for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert (await authenticate(ring, {"client": (host, 1)}, {})).tenant == "default"
    for host in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1"):
        with pytest.raises(Refusal, match="only clients on this machine") as refused:
            await authenticate(ring, {"client": (host, 1)}, {})
        assert refused.value.status == 401
    assert (await authenticate(None, {"client": None}, {})).admin


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("localhost", "a.localhost", "127.1.2.3", "::1", "::1%lo")),
        *((host, False) for host in ("0.0.0.0", "::", "localhost.evil.example", "", "127.0.0.1.nip.io")),
    ],
)
def test_loopback_is_this_machine_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


async def test_keys_of_another_process_are_found_and_forgotten() -> None:
    store, clock = MemoryStore(), SimulatedClock()
    ring = KeyRing(store, clock)
    assert await ring.is_empty()
    key, stored = make_key("late", "acme", admin=False, now=clock.now())
    assert stored.digest not in key.encode()
    await store.add_key(stored)
    clock.advance(300_000)
    found = await ring.find(key)
    assert found is not None
    assert found.tenant == "acme"
    await store.revoke_key("late")
    assert await ring.find(key) == found
    clock.advance(2_100_000)
    assert await ring.find(key) is None


async def test_a_client_with_its_key_needs_nothing_else() -> None:
    store = MemoryStore()
    key, stored = make_key("mine", "acme", admin=False, now=0)
    await store.add_key(stored)
    async with serving(store, key=key) as site:
        assert (await site.add(id="x"))["outcome"] == "scheduled"
        assert (await store.find("acme", "x", site.engine.clock.now())) is not None
