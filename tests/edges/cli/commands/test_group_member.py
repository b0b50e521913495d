"""A group member that loses an answer joins again under its name, because those records are not committed."""

from typing import Any

from tidings.edges.cli.client import Retries
from tidings.edges.cli.commands.topics import consume
from tidings.edges.cli.exit_codes import Exit, Failure
from tidings.edges.cli.screen import Screen


class Server:
    """Answers as a node would, except for the fetches whose answer is lost."""

    def __init__(self, lost: set[int]) -> None:
        self._lost = lost
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._fetches = 0

    def call(self, method: str, path: str, *, body: dict[str, Any]) -> Any:
        verb = path.rpartition("/")[2]
        self.calls.append((verb, body))
        if verb == "fetch":
            self._fetches += 1
            if self._fetches in self._lost:
                raise Failure(Exit.UNREACHABLE, "the connection ended")
            return {"records": [{"partition": 0, "offset": self._fetches}]}
        return {"member": body.get("member", "made-up"), "generation": len(self.calls)}


def test_a_member_that_loses_an_answer_joins_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(Retries, "wait", lambda _: None)
    server = Server(lost={2, 3})
    shown: list[dict[str, Any]] = []

    def show(record: dict[str, Any]) -> bool:
        shown.append(record)
        return len(shown) < 3

    consume(server, "greetings", "workers", show, Screen())  # type: ignore[arg-type]
    verbs = [verb for verb, _ in server.calls]
    assert verbs == [
        "join",
        "fetch",
        "commit",
        "fetch",
        "join",
        "fetch",
        "join",
        "fetch",
        "commit",
        "fetch",
        "commit",
        "leave",
    ]
    assert [body for verb, body in server.calls if verb == "join"] == [{}, {"member": "made-up"}, {"member": "made-up"}]
