"""One client of the proxy, with its own connection to the broker."""

import contextlib
import socket
import threading
from collections.abc import Callable

from tests.servers.frames import Answer, Request, correlation_id, frames
from tests.servers.rules import Cut, Hold, Rule


class Link:
    """Passes requests to the broker and answers to the client; `judge` says which rule strikes a request."""

    def __init__(self, client: socket.socket, broker: socket.socket, judge: Callable[[Request], Rule | None]) -> None:
        self._client = client
        self._broker = broker
        self._judge = judge
        self._struck: dict[int, tuple[Rule, Request]] = {}  # on the way to the broker, by correlation id
        self._is_client_gone = False
        for connection in (client, broker):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        """Until both sides are closed."""
        answers = threading.Thread(target=self._pass_answers, daemon=True)
        with self._client, self._broker:
            answers.start()
            self._pass_requests()
            answers.join()
        for rule, _ in self._struck.values():
            if isinstance(rule, Cut):
                rule.give_back()

    def cut(self) -> None:
        """Close both sides."""
        self._cut_client()
        _shut(self._broker)

    def _cut_client(self) -> None:
        self._is_client_gone = True
        _shut(self._client)

    def _pass_requests(self) -> None:
        with contextlib.suppress(OSError):
            for frame in frames(self._client):
                request = Request.read(frame)
                rule = self._judge(request)
                if rule is None:
                    self._broker.sendall(frame)
                else:
                    self._strike(rule, request)
                if self._is_client_gone:
                    return
        self.cut()

    def _strike(self, rule: Rule, request: Request) -> None:
        if isinstance(rule, Cut) and rule.when == "before":
            self.cut()
            rule.count_strike()
            return
        if isinstance(rule, Hold):
            if rule.cuts:
                self._cut_client()
            rule.count_strike()
            rule.wait_for_release()
        self._struck[request.correlation_id] = (rule, request)
        self._broker.sendall(request.frame)

    def _pass_answers(self) -> None:
        with contextlib.suppress(OSError):
            for frame in frames(self._broker):
                rule, request = self._struck.pop(correlation_id(frame), (None, None))
                if rule is not None and request is not None:
                    self._hear(rule, Answer(request, frame))
                if not self._is_client_gone:
                    self._client.sendall(frame)
        self.cut()

    def _hear(self, rule: Rule, answer: Answer) -> None:
        """The answer to a request that was struck: if the client is to miss it, the link has done its work."""
        if isinstance(rule, Cut):
            self.cut()
            rule.count_strike()
        elif self._is_client_gone:
            self.cut()
        rule.add_answer(answer)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
