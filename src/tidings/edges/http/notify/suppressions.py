"""Suppressed addresses: list, add, remove."""

import msgspec

from tidings.delivery.suppressions import check_suppressible
from tidings.domain.address import Device
from tidings.domain.errors import Invalid
from tidings.domain.preferences import check_category
from tidings.domain.user import TRANSACTIONAL
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import SMALL_BODY_BYTES_MAX, decode, query_of, read_body
from tidings.edges.http.notify.asking import channel_in_path, channel_of, limit_of, unknown
from tidings.edges.http.notify.documents import suppression_document
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.shapes.user import NewSuppression

LIST = "/v1/suppressions"


_decoder = msgspec.json.Decoder(NewSuppression)


class Suppressions:
    """The resource `/v1/suppressions`."""

    def __init__(self, edge: Edge) -> None:
        self._suppressions = edge.office.suppressions

    async def index(self, call: Call) -> Reply:
        """A page, the latest first."""
        query = query_of(call.scope, "channel", "cursor", "limit")
        page = await self._suppressions.page(
            call.caller.tenant, channel_of(query), query.get("cursor"), limit_of(query)
        )
        return json_answer({"suppressions": [*map(suppression_document, page.suppressions)], "cursor": page.cursor})

    async def put(self, call: Call) -> Reply:
        """Send nothing there from now on."""
        query_of(call.scope)
        channel, address = channel_in_path(call), _address(call)
        body = await read_body(call.headers, call.receive, SMALL_BODY_BYTES_MAX)
        asked = decode(_decoder, body, NewSuppression)
        _check_category(asked.category)
        added = await self._suppressions.add(
            call.caller.tenant, channel, address, asked.reason, category=asked.category
        )
        document = {"channel": channel, "address": call.text("address")}
        if added:
            return json_answer(document | {"outcome": "suppressed"}, 201)
        return json_answer(document | {"outcome": "unchanged"})

    async def delete(self, call: Call) -> Reply:
        """Let messages go there again."""
        category = query_of(call.scope, "category").get("category")
        channel, address = channel_in_path(call), _address(call)
        _check_category(category)
        if not await self._suppressions.remove(call.caller.tenant, channel, address, category):
            raise unknown(f"suppression of {channel}", call.text("address"), LIST)
        return json_answer({"channel": channel, "address": call.text("address"), "outcome": "removed"})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            LIST: {"GET": self.index},
            f"{LIST}/{{channel}}/{{address}}": {"PUT": self.put, "DELETE": self.delete},
        }


def _check_category(category: str | None) -> None:
    if category is None:
        return
    check_category(category)
    if category == TRANSACTIONAL:
        raise Invalid(
            "category", "transactional messages cannot be suppressed on their own: leave it out to suppress everything"
        )


def _address(call: Call) -> str | Device:
    """The address of a path; a device is written as its platform, a colon, and its token."""
    channel, text = channel_in_path(call), call.text("address")
    address: str | Device = text
    if channel == "push":
        platform, _, token = text.partition(":")
        if platform not in {"apns", "fcm"}:
            raise Invalid("address", "is not a device: write apns:<token> or fcm:<token>")
        address = Device("apns" if platform == "apns" else "fcm", token)
    if channel != "in_app":
        check_suppressible(channel, address)
    return address
