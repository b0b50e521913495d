"""The description of the API, for programs and as a page to try it."""

from functools import cache
from importlib.resources import files

from tidings.edges.http.edge import Edge
from tidings.edges.http.inputs import query_of
from tidings.edges.http.openapi.describe import describe
from tidings.edges.http.routing import Answer, Call, Handler, Reply
from tidings.wires.answers import encode

# The page is one file without foreign parts; what it shows comes from this server alone.
_POLICY = b"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


class Docs:
    """The resources `/openapi.json` and `/docs`, and the way there."""

    def __init__(self, edge: Edge) -> None:
        self._openapi = encode(describe(edge.version)) + b"\n"

    async def home(self, call: Call) -> Reply:
        """Who asks for nothing is shown what there is."""
        query_of(call.scope)
        return Answer(b"see /docs\n", 307, [(b"location", b"/docs")], b"text/plain; charset=utf-8")

    async def openapi(self, call: Call) -> Reply:
        """OpenAPI 3.1."""
        query_of(call.scope)
        return Answer(self._openapi)

    async def page(self, call: Call) -> Reply:
        """The page to try it."""
        query_of(call.scope)
        headers = [(b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff")]
        return Answer(_page(), 200, headers, b"text/html; charset=utf-8")

    def methods(self) -> dict[str, dict[str, Handler]]:
        """The handlers by path and method."""
        return {"/openapi.json": {"GET": self.openapi}, "/docs": {"GET": self.page}, "/": {"GET": self.home}}


@cache
def _page() -> bytes:
    return files("tidings.edges.http").joinpath("docs.html").read_bytes()
