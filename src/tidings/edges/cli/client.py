"""Calls to a running node, with only the standard library so that commands start quickly."""

import http.client
import json
import re
import shlex
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from tidings import __version__
from tidings.edges.advice import SEND_KEY, NextSteps, advice, wrong_tenant
from tidings.edges.cli.exit_codes import Exit, Failure, code_of_status, program
from tidings.edges.cli.screen import Screen

TIMEOUT_S = 30.0
JSON = "application/json"
NOTIFICATION_PATHS = tuple(
    f"/v1/{noun}" for noun in ("users", "templates", "notifications", "deliveries", "inbox", "suppressions", "channels")
)

_LISTS = re.compile(r"GET /v1/(\w+) lists them")
_LIST = {"channels": "channels"}  # where it is not `<noun> list`

BACKOFF_S = (0.1, 0.25, 0.5, 1.0, 2.0)
TEMPORARY = {429, 500, 502, 503, 504}


class Client:
    """A client of the node at a URL, with an API key and a tenant if they are given."""

    def __init__(self, url: str, key: str | None = None, tenant: str | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise Failure(Exit.USAGE, f"--url {url!r} is not a URL: use one such as http://127.0.0.1:8460")
        try:
            port = parts.port
        except ValueError as error:
            raise Failure(Exit.USAGE, f"--url {url!r} has no valid port: {error}") from None
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._base = parts.path
        self._headers = {"User-Agent": f"tidings/{__version__}", "Accept": JSON}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        if tenant is not None:
            if wrong := wrong_tenant(tenant):
                raise Failure(Exit.USAGE, f"{tenant!r} {wrong}")
            self._headers["Tidings-Tenant"] = tenant

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """Send one request and return the document of the answer; raises `Failure` for a problem."""
        headers = {**(headers or {}), **({"Content-Type": JSON} if body is not None else {})}
        payload = None if body is None else json.dumps(body).encode()
        with self.request(method, path, query=query, headers=headers, payload=payload, timeout_s=timeout_s) as answer:
            return decode(answer.read())

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        payload: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and yield the response, which the caller reads as it arrives."""
        with self.connect(timeout_s) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):  # a server that refuses early has still answered
                connection.request(method, self.target(path, query), payload, {**self._headers, **(headers or {})})
            response = connection.getresponse()
            self.check(response, path)
            yield response

    @contextmanager
    def connect(self, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
        """A connection; network errors on it are raised as `Failure`."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=timeout_s)
        try:
            connection.connect()
            yield connection
        except ssl.SSLError as error:
            raise self._unreachable(str(error.reason or error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(_reason(error)) from error
        finally:
            connection.close()

    def target(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """The path on this node with its query; parameters that are None are left out."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return self._base + path + (f"?{urlencode(given)}" if given else "")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        return dict(self._headers)

    def check(self, response: http.client.HTTPResponse, path: str) -> None:
        """Raise `Failure` if the response is a problem."""
        if response.status < 400:
            return
        document = decode(response.read())
        raise Failure(code_of_status(response.status), _problem(response, document, path), document)

    def _unreachable(self, reason: str) -> Failure:
        return Failure(
            Exit.UNREACHABLE,
            f"cannot reach Tidings at {self.url}: {reason}\n"
            f"start it with `{program()} serve`, or name another server with --url or TIDINGS_URL",
        )


def segment(text: str) -> str:
    """A text as one segment of a path."""
    return quote(text, safe="")


def decode(body: bytes) -> Any:
    """The JSON document of a body; a body that is not JSON is returned as text."""
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def reason_of(document: dict[str, Any]) -> str | None:
    """Why a change did not happen, and which command to use; None if the document is not about a change."""
    if "outcome" not in document or "errors" in document:
        return None
    name, outcome = program(), str(document["outcome"])
    steps = NextSteps(f"replace it (`{name} replace`)", f"run `{name} replace --reuse`", f"`{name} explain` shows")
    reason = document.get("reason") or (document.get("detail") if outcome != "in_flight" else None)
    return advice(outcome, document.get("state"), reason, steps)


def faults(document: dict[str, Any]) -> list[str]:
    """The errors of a problem or a rejected line, by field."""
    errors = document.get("errors") or ()
    return [_as_option(f"{error.get('field')}: {error.get('detail')}") for error in errors if isinstance(error, dict)]


def _as_option(text: str) -> str:
    return text.replace("past=send", "--past send")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def in_commands(detail: str, path: str, name: object = None) -> str:
    """The detail of a problem about notifications, with commands in place of the HTTP calls that it names.

    `name` is the id of what it is about, if the path does not have it.
    """
    if not path.startswith(NOTIFICATION_PATHS):
        return detail
    _, _, noun, *rest = path.split("/")
    own = shlex.quote(unquote(rest[0]) if rest else str(name)) if rest or name else "ID"
    listed = _LISTS.sub(lambda found: f"`{program()} {_LIST.get(found[1], f'{found[1]} list')}` shows them", detail)
    shown = "get" if noun in {"users", "templates"} else "show"
    command = f"{program()} {noun}"
    for call, instead in (
        ("GET it", f"run `{command} {shown} {own}`"),
        ("PUT it with ?reuse=true", f"run `{command} replace {own} USER ... --reuse`"),
        ("replace it (PUT)", f"replace it (`{command} replace {own} USER ...`)"),
    ):
        listed = listed.replace(call, instead)
    return listed


def _problem(response: http.client.HTTPResponse, document: Any, path: str) -> str:
    """A problem document as text, with what to do next."""
    if not isinstance(document, dict):
        return f"the server answered {response.status} {response.reason}"
    detail = str(document.get("detail") or document.get("title") or response.reason)
    if path.startswith(NOTIFICATION_PATHS):
        text = in_commands(detail, path, document.get("id"))
    else:
        text = reason_of(document) or detail
    if response.status == 401:
        text = text.removesuffix(f": {SEND_KEY}")
        text += f": give one with --api-key or TIDINGS_KEY; `{program()} keys create` creates one"
    text = _as_option(text)
    lines = [text, *(f"  {fault}" for fault in faults(document) if fault not in text)]
    if after := response.headers.get("Retry-After"):
        lines.append(f"try again in {after} s")
    return "\n".join(lines)


class ServerEvent(NamedTuple):
    """One server-sent event: its kind, its data, and the position to resume from."""

    kind: str
    data: str
    position: str | None


def read_events(lines: Iterable[bytes], position: str | None = None) -> Iterator[ServerEvent]:
    """The events in a stream of lines. An incomplete event at the end is ignored, and so are comments.

    An event `error` is the last one: its problem is raised as a `Failure` after which the client reconnects.
    """
    kind, data = "message", list[str]()
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if data and kind == "error":
                raise _ended(data)
            if data:
                yield ServerEvent(kind, "\n".join(data), position)
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            position = value


def _ended(data: list[str]) -> Failure:
    """The failure for the event `error`."""
    try:
        problem = json.loads("\n".join(data))
    except ValueError:
        problem = None
    detail = problem.get("detail") if isinstance(problem, dict) else None
    return Failure(Exit.UNREACHABLE, f"the server ended the stream: {detail or data[0]}", problem)


class Retries:
    """Which failures are retried, and how long to wait before the next try."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._failures = 0

    def reset(self) -> None:
        """Start over with the shortest wait, after a success."""
        self._failures = 0

    def check(self, failure: Failure) -> None:
        """Raise the failure unless it is temporary."""
        status = failure.document.get("status") if isinstance(failure.document, dict) else None
        if failure.code != Exit.UNREACHABLE and status not in TEMPORARY:
            raise failure

    def wait(self) -> None:
        """Wait before the next try."""
        if self._failures == 0:
            self._screen.note("tidings: the connection ended, trying again")
        threading.Event().wait(BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)])
        self._failures += 1
