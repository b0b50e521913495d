"""`Tidings-Tenant`: the tenant that a request acts for, and which keys may name another."""

import asyncio
import json

import pytest

from tests.edges.http.site import FAR, Site
from tests.edges.http.test_keys import made
from tidings.__main__ import NodeHooks
from tidings.edges.advice import TENANT_CHARS_MAX
from tidings.edges.cli.main import main, parse
from tidings.edges.http.openapi.describe import describe
from tidings.wires import wire

ACME = {"Tidings-Tenant": "acme"}


async def test_without_keys_every_client_chooses_its_tenant(each_site: Site) -> None:
    schedule = {"id": "one", "topic": "orders", "at": FAR, "value": "v"}
    assert (await each_site.call("POST", "/v1/schedules", schedule, headers=ACME)).status == 201
    assert (await each_site.call("GET", "/v1/schedules/one")).status == 404
    assert (await each_site.call("GET", "/v1/schedules/one", headers=ACME)).status == 200
    listed = (await each_site.call("GET", "/v1/schedules", headers=ACME)).document["schedules"]
    assert [row["id"] for row in listed] == ["one"]
    assert (await each_site.call("GET", "/v1/schedules", headers={"Tidings-Tenant": "new"})).document["schedules"] == []
    assert (await each_site.call("POST", "/v1/schedules/one/fire", headers=ACME)).status == 200
    page = await each_site.call("GET", "/v1/topics/orders/records?wait=5", headers=ACME)
    assert [record["value"] for record in page.document["records"]] == ["v"]
    assert (await each_site.call("GET", "/v1/topics/orders/records")).document["records"] == []
    assert (await each_site.call("GET", "/v1/keys", headers=ACME)).status == 200


async def test_with_keys_only_an_admin_chooses_the_tenant(each_site: Site) -> None:
    admin = await made(each_site, "boss", "default", admin=True)
    bolt = await made(each_site, "b", "bolt", admin)
    added = await each_site.call("POST", "/v1/schedules", {"id": "one", "topic": "t", "at": FAR}, headers=admin | ACME)
    assert added.status == 201
    refused = await each_site.call("GET", "/v1/schedules/one", headers=bolt | ACME)
    assert refused.status == 403
    assert "acts for bolt" in refused.problem["detail"]
    assert "admin" in refused.problem["detail"]
    assert "acme" not in refused.problem["detail"]
    own = await each_site.call("GET", "/v1/schedules", headers=bolt | {"Tidings-Tenant": "bolt"})
    assert (own.status, own.document["schedules"]) == (200, [])
    assert (await each_site.call("DELETE", "/v1/schedules/one", headers=admin | ACME)).document[
        "outcome"
    ] == "cancelled"
    assert (await each_site.call("GET", "/v1/schedules", headers=ACME)).status == 401


@pytest.mark.parametrize("name", ["", "a b", "a/b", "caf\u00e9", "x" * (TENANT_CHARS_MAX + 1)])
async def test_invalid_tenant_names_are_refused(site: Site, name: str) -> None:
    problem = (await site.call("GET", "/v1/schedules", headers={"Tidings-Tenant": name})).problem
    assert problem["status"] == 400
    assert problem["errors"][0]["field"] == "Tidings-Tenant"


def test_every_tenant_of_kafka_can_be_named() -> None:
    assert TENANT_CHARS_MAX == wire.TENANT_CHARS_MAX


def test_the_header_is_described_for_every_operation_of_a_tenant() -> None:
    for path, methods in describe("0").get("paths", {}).items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation.get("parameters", ())}
            of_a_tenant = path.startswith("/v1/") and not path.startswith(("/v1/keys", "/v1/nodes"))
            assert ("Tidings-Tenant" in named) == of_a_tenant, path


async def test_the_command_line_sends_the_tenant(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, [*argv, "--url", site.url], NodeHooks())
        return code, *capsys.readouterr()

    code, _, err = await run("schedule", "--to", "t", "--at", "+1h", "--id", "one", "v", "--tenant", "acme")
    assert code == 0, err
    assert (await run("show", "one"))[0] == 3
    assert (await run("cancel", "one"))[0] == 3
    monkeypatch.setenv("TIDINGS_TENANT", "acme")
    code, out, _ = await run("list", "--json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["one"]
    assert (await run("list", "--tenant", "bolt"))[1] == "", "a flag goes before the variable"
    assert (await run("cancel", "one"))[0] == 0
    code, _, err = await run("list", "--tenant", "a b")
    assert code == 2
    assert "'a b' is not a valid tenant name" in err


COMMANDS = ["schedule", "publish t v", "replace i --to t v", "show i", "explain i", "list", "cancel i", "pause i"]
MORE = ["resume i", "fire i", "tail t", "rejections", "topics", "forecast", "preview --at 1s"]


@pytest.mark.parametrize("command", [*COMMANDS, *MORE])
def test_every_command_takes_it(command: str) -> None:
    assert parse([*command.split(), "--tenant", "acme"]).acts_for == "acme"


async def test_a_server_starts_where_a_tenant_is_chosen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDINGS_TENANT", "acme")
    assert main(["serve", "--print-config"], NodeHooks()) == 0
    assert "acme" not in capsys.readouterr().out
