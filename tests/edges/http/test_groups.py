"""Consumer groups over HTTP."""

import asyncio
from typing import Any

from tests.edges.http.site import Reply, Site

GROUP = "/v1/topics/work/groups/workers"


async def ask(site: Site, verb: str, member: Any, **more: Any) -> Reply:
    sent = {"member": member["member"], "generation": member["generation"]} | more
    return await site.call("POST", f"{GROUP}/{verb}", sent)


async def join(site: Site, **document: Any) -> Any:
    reply = await site.call("POST", f"{GROUP}/join", document)
    assert reply.status == 200, reply.body
    return reply.document


async def test_a_member_fetches_commits_and_leaves(each_site: Site) -> None:
    for n in range(4):
        await each_site.publish("work", key=f"k{n}", value=str(n))
    member = await join(each_site, member="one")
    assert member["member"] == "one"
    assert sorted(member["partitions"]) == [0, 1, 2, 3]
    assert member["session_ms"] > 0
    records = (await ask(each_site, "fetch", member, limit=10, wait="1s")).document["records"]
    assert sorted(record["value"] for record in records) == ["0", "1", "2", "3"]
    offsets: dict[str, int] = {}
    for record in records:
        offsets[str(record["partition"])] = record["offset"] + 1
    committed = await ask(each_site, "commit", member, offsets=offsets)
    assert committed.document == {"member": "one", "committed": offsets}
    assert (await ask(each_site, "heartbeat", member)).document == member
    assert (await ask(each_site, "leave", member)).document == {"member": "one", "left": True}
    other = await join(each_site)
    assert other["member"] != "one"
    assert (await ask(each_site, "fetch", other, wait=0)).document == {"records": []}


async def test_a_former_member_is_refused(each_site: Site) -> None:
    await each_site.publish("work", value="x")
    former = await join(each_site, member="one")
    await ask(each_site, "leave", former)
    for verb in ("heartbeat", "fetch", "commit", "leave"):
        more: dict[str, Any] = {"offsets": {}} if verb == "commit" else {}
        reply = await ask(each_site, verb, former, **more)
        assert reply.status == 409, verb
        assert reply.problem["type"] == "urn:tidings:problem:not_a_member"
        assert "join" in reply.problem["detail"]


async def test_a_fetch_waits_for_the_next_record(each_site: Site) -> None:
    member = await join(each_site)
    fetching = asyncio.create_task(ask(each_site, "fetch", member, wait="1500ms"))
    await each_site.publish("work", value="new")
    records = (await fetching).document["records"]
    records += (await ask(each_site, "fetch", member)).document["records"]
    assert [record["value"] for record in records] == ["new"]


async def test_wrong_input_is_named(site: Site) -> None:
    for verb, document, field in (
        ("join", {"name": "x"}, "name"),
        ("join", {"member": ""}, "member"),
        ("heartbeat", {"member": "x"}, "generation"),
        ("heartbeat", {"member": "x", "generation": "1"}, "generation"),
        ("fetch", {"member": "x", "generation": 1, "limit": 0}, "limit"),
        ("fetch", {"member": "x", "generation": 1, "wait": "1 year"}, "wait"),
        ("fetch", {"member": "x", "generation": 1, "wait": 61}, "wait"),
        ("commit", {"member": "x", "generation": 1, "offsets": {"a": 1}}, "offsets"),
        ("commit", {"member": "x", "generation": 1, "offsets": {"0": -1}}, "offsets.0"),
    ):
        reply = await site.call("POST", f"{GROUP}/{verb}", document)
        assert reply.status == 400, document
        assert reply.problem["errors"][0]["field"] == field, reply.body
    assert (await site.call("POST", f"{GROUP}/join")).status == 200
    assert (await site.call("POST", f"{GROUP}/join", data=b"{}", headers={"Content-Type": "text/plain"})).status == 415
