"""OpenAPI is complete and correct: it has every route, and requests and answers have its shapes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.edges.http.shapes import Shapes
from tests.edges.http.site import FAR, NDJSON, VERSION, Reply, Site
from tidings.delivery.accept.request import NotificationRequest
from tidings.domain.notifications.notification import InlineContent
from tidings.edges.http.openapi.describe import describe
from tidings.shapes.notification import NewTemplate, Parts, TemplatePreview
from tidings.shapes.schedule import NewSchedule
from tidings.shapes.user import MarkRead, NewSuppression, NewUser, Profile

API: Any = json.loads(json.dumps(describe(VERSION)))
SHAPES = Shapes(API)
METHODS = {"get", "post", "put", "patch", "delete"}


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in API["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def bodies(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every schema with an example of it, in what is sent and answered."""
    for media in node.get("content", {}).values():
        if "example" in media:
            yield media["schema"], media["example"]
        for example in media.get("examples", {}).values():
            yield media["schema"], example["value"]


async def test_it_is_served_and_names_its_version(site: Site) -> None:
    served = (await site.call("GET", "/openapi.json")).document
    assert served == API
    assert (served["openapi"], served["info"]["version"]) == ("3.1.0", VERSION)


async def test_every_route_of_the_application_is_described(site: Site) -> None:
    served = {(method.lower(), route.path) for route in site.app.routes for method in route.methods}
    assert served == {(method, path) for method, path, _ in operations()}


@pytest.mark.parametrize(("method", "path", "operation"), list(operations()), ids=lambda value: str(value)[:40])
def test_every_operation_is_whole(method: str, path: str, operation: Any) -> None:
    assert method in METHODS
    assert operation["summary"]
    assert operation["tags"][0] in {tag["name"] for tag in API["tags"]}
    named = {parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "path"}
    assert named == set(re.findall(r"{(\w+)}", path))
    assert all(parameter["description"] for parameter in operation.get("parameters", ()))
    assert {"400", "405", "500"} < operation["responses"].keys()
    for response in operation["responses"].values():
        assert SHAPES.resolve(response)["description"]


def test_operation_ids_are_unique() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))


def test_every_example_has_its_shape() -> None:
    count = 0
    for method, path, operation in operations():
        for node in (operation.get("requestBody", {}), *operation["responses"].values()):
            for schema, example in bodies(SHAPES.resolve(node)):
                assert SHAPES.faults(schema, example) == [], (method, path)
                count += 1
    assert count > 60


def test_every_reference_leads_somewhere_and_every_shape_is_used() -> None:
    text = json.dumps(API)
    named = set(re.findall(r'"\$ref": "#/components/(\w+/\w+)"', text))
    for reference in named:
        SHAPES.resolve({"$ref": f"#/components/{reference}"})
    there = {f"{kind}/{name}" for kind in ("schemas", "responses") for name in API["components"][kind]}
    assert there == named


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NewSchedule", NewSchedule),
        ("NewUser", NewUser),
        ("UserChanges", Profile),
        ("NewTemplate", NewTemplate),
        ("TemplatePreview", TemplatePreview),
        ("Parts", Parts),
        ("NewNotification", NotificationRequest),
        ("InlineContent", InlineContent),
        ("MarkRead", MarkRead),
        ("NewSuppression", NewSuppression),
    ],
)
def test_the_shape_of_what_is_sent_is_what_is_read(name: str, kind: type[msgspec.Struct]) -> None:
    described = API["components"]["schemas"][name]["properties"].keys()
    assert described == {field.name for field in msgspec.structs.fields(kind)}


def examples_sent() -> Iterator[tuple[str, str, Any]]:
    """Every example of what is sent, for paths that need no other thing to be there."""
    for method, path, operation in operations():
        for _, example in bodies(operation.get("requestBody", {})):
            if not isinstance(example, str) and not re.search("heartbeat|fetch|commit|leave", path):
                yield method, path, example


def filled(path: str) -> str:
    """A path with the names that the examples use."""
    place = {"id": "order-42-reminder", "user": "ada", "channel": "email", "address": "ada%40example.com"}
    if path.startswith("/v1/users"):
        place["id"] = "ada"
    if path.startswith("/v1/templates"):
        place["name"] = "reminder"
    return re.sub(r"{(\w+)}", lambda found: place.get(found[1], "greetings"), path)


async def test_every_example_can_be_sent(site: Site) -> None:
    for method, path, example in examples_sent():
        reply = await site.call(method, filled(path), example)
        assert reply.status in {200, 201}, (path, reply.body)
        check_answer(method, path, reply)
        if path == "/v1/keys":
            return


def check_answer(method: str, path: str, reply: Reply) -> None:
    """An answer has the shape that is described for its status."""
    responses = API["paths"][path][method.lower()]["responses"]
    assert str(reply.status) in responses, (method, path, reply.status, reply.body)
    content = SHAPES.resolve(responses[str(reply.status)])["content"]
    media = reply.headers["Content-Type"].partition(";")[0]
    assert media in content, (method, path, media)
    documents = reply.lines if media == NDJSON["Content-Type"] else [reply.document]
    for document in documents:
        assert SHAPES.faults(content[media]["schema"], document) == [], (method, path, document)


async def test_real_answers_have_their_shapes(each_site: Site) -> None:
    await each_site.publish("greetings", key="k", value="x", headers={"a": "b", "n": None})
    [record] = await each_site.records("greetings")
    one, group = "/v1/schedules/{id}", "/v1/topics/{topic}/groups/{group}"
    pending = {"topic": "greetings", "at": FAR, "labels": {"a": "b"}, "late_max": "PT1H", "value": 1}
    recurring = {"topic": "greetings", "every": "PT1H"}
    member: dict[str, Any] = {}
    for method, path, place, document, status in (
        ("POST", "/v1/schedules", "", pending | {"id": "mine"}, 201),
        ("POST", "/v1/schedules", "", pending | {"id": "mine"}, 200),
        ("POST", "/v1/schedules", "", pending | {"id": "mine", "value": 2}, 409),
        ("POST", "/v1/schedules", "", [pending, {"topic": ""}], 200),
        ("POST", "/v1/schedules", "", {}, 400),
        ("GET", "/v1/schedules", "", None, 200),
        ("GET", one, "mine", None, 200),
        ("PUT", one, "mine", recurring, 200),
        ("GET", one, "mine", None, 200),
        ("GET", one, "nothing", None, 404),
        ("GET", f"{one}/explain", record["id"], None, 200),
        ("POST", f"{one}/pause", "mine", None, 200),
        ("POST", f"{one}/resume", "mine", None, 200),
        ("POST", f"{one}/fire", "mine", None, 200),
        ("DELETE", one, "mine", None, 200),
        ("DELETE", one, "nothing", None, 404),
        ("DELETE", one, record["id"], None, 409),
        ("POST", "/v1/preview", "", {"every": "PT1H"}, 200),
        ("GET", "/v1/forecast", "", None, 200),
        ("GET", "/v1/topics", "", None, 200),
        ("GET", "/v1/topics/{topic}/records", "", None, 200),
        ("POST", f"{group}/join", "", {"member": "m"}, 200),
        ("POST", f"{group}/heartbeat", "", member, 200),
        ("POST", f"{group}/fetch", "", member, 200),
        ("POST", f"{group}/commit", "", member, 200),
        ("POST", f"{group}/leave", "", member, 200),
        ("POST", f"{group}/leave", "", member, 409),
        ("GET", "/v1/keys", "", None, 200),
        ("GET", "/v1/nodes", "", None, 200),
        ("GET", "/healthz", "", None, 200),
        ("GET", "/readyz", "", None, 200),
        ("PUT", "/healthz", "", None, 405),
    ):
        filled = path.replace("{id}", place).replace("{topic}", "greetings").replace("{group}", "g")
        offsets = {"offsets": {"0": 0}} if "commit" in path else {}
        sent = member | offsets if document is member else document
        reply = await each_site.call(method, filled, sent)
        assert reply.status == status, (method, path, reply.body)
        check_answer(method if status != 405 else "GET", path, reply)
        if path.endswith("/join"):
            member |= {name: reply.document[name] for name in ("member", "generation")}


async def test_the_page_to_try_it_needs_nothing_from_elsewhere(site: Site) -> None:
    reply = await site.call("GET", "/docs")
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
    page = reply.body.decode()
    assert 'name="viewport"' in page
    assert "/openapi.json" in page
    assert not re.findall(r"https?://|<link|<img|src=|@import|url\(", page)
