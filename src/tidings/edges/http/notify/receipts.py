"""Callbacks of providers. They have no key of ours: a signature says that they are genuine."""

import asyncio
from collections.abc import Sequence

from tidings.delivery.receiving import Applied
from tidings.domain.delivered import DeliveryReceipt
from tidings.domain.errors import Invalid
from tidings.edges.advice import wrong_tenant
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import read_body
from tidings.edges.http.problems import Refusal
from tidings.edges.http.routing import Call, Handler, Reply, json_answer
from tidings.ports import Callback
from tidings.wires.refusal import shorten

SETTLE_S = 1.0  # news may come before the worker has written down what they are about

ONE = "/receipts/{provider}"


class Receipts:
    """The resource `/receipts`."""

    def __init__(self, edge: Edge) -> None:
        self._office = edge.office
        self._clock = edge.engine.clock

    async def take(self, call: Call) -> Reply:
        """News of a provider, if they are genuine. What is about nothing that we know is taken, and left aside."""
        provider = call.text("provider")
        tenant = call.text("tenant") if "tenant" in call.parameters else None
        if tenant is not None and (wrong := wrong_tenant(tenant)):
            raise Invalid("tenant", wrong)
        reader = self._office.readers.get(provider)
        if reader is None:
            detail = f"callbacks of {shorten(provider)!r} are not accepted: configure the key that signs them"
            raise Refusal("not_found", detail)
        body = await read_body(call.headers, call.receive, reader.bytes_max)
        callback = Callback(_target(call), _headers(call), body, self._clock.now() // 1_000_000)
        try:
            reader.verify(callback)
        except Invalid as invalid:
            raise Refusal("unsigned", str(invalid)) from None
        told = reader.read(callback)
        if tenant is None and any(each.message and not each.provider_id and each.tenant is None for each in told):
            where = f"POST /receipts/{provider}/TENANT"
            raise Invalid("message", f"is one of our ids, which is unique only within a tenant: send it to {where}")
        applied = await self._apply(provider, told, tenant)
        words = [each.outcome for each in applied]
        counts = {word: words.count(word) for word in ("applied", "unchanged", "unknown")}
        return json_answer({"received": len(applied)} | counts)

    async def _apply(self, provider: str, receipts: Sequence[DeliveryReceipt], tenant: str | None) -> list[Applied]:
        receiving = self._office.receiving
        applied = await receiving.apply_all(provider, receipts, tenant)
        open_ones = [number for number, each in enumerate(applied) if each.outcome == "unknown"]
        if open_ones:
            await asyncio.sleep(SETTLE_S)
            again = await receiving.apply_all(provider, [receipts[number] for number in open_ones], tenant)
            for number, each in zip(open_ones, again, strict=True):
                applied[number] = each
        return applied

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {ONE: {"POST": self.take}, f"{ONE}/{{tenant}}": {"POST": self.take}}


def _target(call: Call) -> str:
    """The path as it was called, with its query: some sign it."""
    query: bytes = call.scope["query_string"]
    path: str = call.scope["path"]
    return f"{path}?{query.decode('latin-1')}" if query else path


def _headers(call: Call) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
