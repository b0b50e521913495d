"""The requests with which a store of the fixtures was filled, so that they can be repeated."""

from typing import Any

from tests.upgrades.node import Client, Reply

# Repeated, these would change something again.
CHANGES = ("/pause", "/resume", "/fire", "/read", "/retry", "/erase", "/commit", "/join", "/fetch", "/leave")


class Requests:
    """Sends requests, checks that they are accepted, and keeps those that a client may repeat."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send(
        self,
        client: Client,
        method: str,
        path: str,
        document: Any = None,
        *,
        tenant: str = "default",
        key: str | None = None,
    ) -> Reply:
        """Send one; `key` is its idempotency key."""
        headers = {} if key is None else {"Idempotency_Key": key}
        reply = await client.call(method, path, document, tenant=tenant, **headers)
        assert reply.status < 300, (method, path, document, reply.status, reply.body)
        self.keep(method, path, document, tenant=tenant, key=key, answer=reply)
        return reply

    def keep(self, method: str, path: str, document: Any, *, tenant: str, key: str | None, answer: Reply) -> None:
        """Keep a request if its repetition changes nothing, also on a node without Kafka."""
        fields = document if isinstance(document, dict) else {}
        is_named = key is not None or "id" in fields
        if method == "POST" and is_named and fields.get("bus") != "kafka" and not path.endswith(CHANGES):
            request = {"path": path, "document": document, "tenant": tenant, "key": key, "answer": answer.stored}
            self.sent.append(request)

    async def repeat(self, client: Client) -> list[dict[str, Any]]:
        """Send all of them again; returns the answers."""
        return [(await repeated(client, each)).stored for each in self.sent]


async def repeated(client: Client, request: dict[str, Any]) -> Reply:
    """Send a stored request again."""
    headers = {} if request["key"] is None else {"Idempotency_Key": request["key"]}
    return await client.call("POST", request["path"], request["document"], tenant=request["tenant"], **headers)
