"""For those who watch over the process: is it alive, does it take changes, what are its figures."""

import inspect

from tidings.domain.errors import StoreError
from tidings.edges.advice import NO_ANSWER, plain
from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import query_of
from tidings.edges.http.problems import RETRY_AFTER_S, Refusal
from tidings.edges.http.routing import Answer, Call, Handler, Reply, json_answer

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The resources `/healthz`, `/readyz` and `/metrics`. They need no key and show nothing of any tenant."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def alive(self, call: Call) -> Reply:
        """The process answers."""
        query_of(call.scope)
        return json_answer({"status": "ok", "version": self._edge.version})

    async def ready(self, call: Call) -> Reply:
        """Whether this process takes changes now."""
        query_of(call.scope)
        ready, detail = self._edge.engine.readiness()
        if not ready or self._edge.stopping.is_set():
            headers = {"retry-after": str(RETRY_AFTER_S)}
            raise Refusal("unavailable", "stopping" if ready else detail, headers=headers)
        if problems := self._edge.engine.problems():
            headers = {"retry-after": str(RETRY_AFTER_S)}
            told = dict.fromkeys(plain(problem).removeprefix(NO_ANSWER) for problem in problems)
            text = f"changes are taken, but Kafka is away: {'; '.join(told)}"
            raise Refusal("unavailable", text, headers=headers)
        notices = await self._notices()
        return json_answer({"status": "ready", "detail": detail, **({"notices": notices} if notices else {})})

    async def _notices(self) -> list[str]:
        """What somebody must put right, though this process does all that it is asked."""
        try:
            return await self._edge.office.notices()
        except StoreError:
            return []  # what cannot be looked up now is told the next time

    async def figures(self, call: Call) -> Reply:
        """The metrics in the text format of Prometheus."""
        query_of(call.scope)
        if self._edge.metrics is None:
            raise Refusal("not_found", "this server was started without metrics")
        rendered = self._edge.metrics()
        body = await rendered if inspect.isawaitable(rendered) else rendered
        return Answer(body, media_type=METRICS_TYPE)

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {
            "/healthz": {"GET": self.alive},
            "/readyz": {"GET": self.ready},
            "/metrics": {"GET": self.figures},
        }
