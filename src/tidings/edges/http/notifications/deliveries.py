"""Deliveries, the providers that send them, and the receipts that providers send back."""

from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import CHANNEL_NAMES
from tidings.domain.schedules.iso8601 import format_instant
from tidings.edges.advice import wrong_tenant
from tidings.edges.http.inputs import query_of, read_body, refuse_body
from tidings.edges.http.notifications.documents import delivery_document, provider_document
from tidings.edges.http.notifications.notifications import search_of, unknown
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routes import Call, Edge, Handler, Reply, json_answer
from tidings.ports import Callback
from tidings.shapes.refusal import shorten
from tidings.wires.answers import Document

LIST = "/v1/deliveries"

CHANNELS = "/v1/channels"

ONE = "/receipts/{provider}"


class Deliveries:
    """The resource `/v1/deliveries` and the paths below it."""

    def __init__(self, edge: Edge) -> None:
        self._services = edge.services
        self._clock = edge.engine.clock

    async def index(self, call: Call) -> Reply:
        """A page of the deliveries that match, the last due first."""
        names = ("user", "state", "channel", "notification", "since", "until", "cursor", "limit")
        query = query_of(call.scope, *names)
        search = search_of(query, self._clock.now())
        page = await self._services.reader.deliveries(call.caller.tenant, search, query.get("notification"))
        return json_answer({"deliveries": [*map(delivery_document, page.deliveries)], "cursor": page.cursor})

    async def show(self, call: Call) -> Reply:
        """One delivery with its attempts."""
        query_of(call.scope)
        found = await self._services.reader.delivery(call.caller.tenant, call.text("name"))
        if found is None:
            raise unknown("delivery", call.text("name"))
        return json_answer(delivery_document(found))

    async def retry(self, call: Call) -> Reply:
        """Send a failed delivery again."""
        query_of(call.scope)
        await refuse_body(call.headers, call.receive)
        name = call.text("name")
        retried = await self._services.resend.retry(call.caller.tenant, name)
        if retried.outcome == "unknown":
            raise unknown("delivery", name)
        document: Document = {"id": name, "outcome": retried.outcome, "state": retried.state}
        if retried.outcome == "rejected":
            raise Refusal("conflict", retried.reason, **document)
        return json_answer(document if retried.due is None else document | {"due_at": format_instant(retried.due)})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method; longer paths first, because a name contains slashes."""
        one = f"{LIST}/{{name}}"
        return {LIST: {"GET": self.index}, f"{one}/retry": {"POST": self.retry}, one: {"GET": self.show}}


class Channels:
    """The resource `/v1/channels`. It has no access to secrets, so it cannot show any."""

    def __init__(self, edge: Edge) -> None:
        self._providers = edge.services.providers

    async def index(self, call: Call) -> Reply:
        """The providers and their state, and for each channel the order in which they are tried."""
        query_of(call.scope)
        found = await self._providers.statuses(call.caller.tenant)
        by_channel = {
            channel: [status.provider.name for status in found if channel in status.provider.channels]
            for channel in CHANNEL_NAMES
        }
        document: dict[str, object] = {
            "providers": [provider_document(status) for status in found],
            "channels": by_channel,
        }
        if self._providers.warnings:
            document["warnings"] = list(self._providers.warnings)
        return json_answer(document)

    async def close(self, call: Call) -> Reply:
        """Close the circuit breaker of a provider, or of a webhook receiver, once its problem is fixed."""
        receiver = query_of(call.scope, "receiver").get("receiver")
        await refuse_body(call.headers, call.receive)
        if receiver is None and not call.caller.admin:
            raise Refusal(
                "forbidden",
                "providers are shared by all tenants: use an admin key (created with --admin), or give a receiver",
            )
        name = call.text("name")
        closed = await self._providers.close(call.caller.tenant, name, receiver)
        if closed is None:
            raise Refusal("not_found", f"unknown provider {shorten(name)!r}: GET {CHANNELS} lists them")
        document = {"name": name} if receiver is None else {"name": name, "receiver": receiver}
        return json_answer(document | {"outcome": "closed" if closed else "unchanged"})

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {CHANNELS: {"GET": self.index}, f"{CHANNELS}/{{name}}/close": {"POST": self.close}}


class Receipts:
    """The resource `/receipts`."""

    def __init__(self, edge: Edge) -> None:
        self._services = edge.services
        self._clock = edge.engine.clock

    async def take(self, call: Call) -> Reply:
        """Accept receipts of a provider with a valid signature. Those about unknown messages are kept for a while."""
        provider = call.text("provider")
        tenant = call.text("tenant") if "tenant" in call.parameters else None
        if tenant is not None and (wrong := wrong_tenant(tenant)):
            raise Invalid("tenant", wrong)
        reader = self._services.readers.get(provider)
        if reader is None:
            detail = f"callbacks of {shorten(provider)!r} are not accepted: configure the key that signs them"
            raise Refusal("not_found", detail)
        body = await read_body(call.headers, call.receive, reader.bytes_max)
        callback = Callback(_target(call), _headers(call), body, self._clock.now() // 1_000_000)
        try:
            reader.verify(callback)
        except Invalid as invalid:
            raise Refusal("unsigned", str(invalid)) from None
        receipts = reader.read(callback)
        if tenant is None and any(each.message and not each.provider_id and each.tenant is None for each in receipts):
            where = f"POST /receipts/{provider}/TENANT"
            raise Invalid("message", f"is an id of Tidings, which is unique only within a tenant: send it to {where}")
        applied = await self._services.receipts.apply_all(provider, receipts, tenant)
        words = [each.outcome for each in applied]
        counts = {word: words.count(word) for word in ("applied", "unchanged", "kept", "unknown")}
        return json_answer({"received": len(applied)} | counts)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {ONE: {"POST": self.take}, f"{ONE}/{{tenant}}": {"POST": self.take}}


def _target(call: Call) -> str:
    """The path as it was called, with its query: some providers sign it."""
    query: bytes = call.scope["query_string"]
    path: str = call.scope["path"]
    return f"{path}?{query.decode('latin-1')}" if query else path


def _headers(call: Call) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
