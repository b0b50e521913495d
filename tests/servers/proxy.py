"""A network with faults on demand, between clients and a broker; it sees each request.

    with Proxy(broker) as proxy:
        late = proxy.hold(Api.END_TXN)       # the next commit is held up, its client cut off
        ...
        late.release()                       # now the broker gets it
        late.wait_for_answers()[0].error     # and no client gets this answer

Clients are given `broker.client(bootstrap=proxy.bootstrap)`; the broker sends them back to the proxy by itself. One
proxy at a time for one broker; not for TLS.
"""

import contextlib
import socket
import threading
from collections import Counter
from typing import Self, TypeVar, Unpack

from tests.servers.frames import Request
from tests.servers.kafka import Broker
from tests.servers.link import Link
from tests.servers.ports import HOST
from tests.servers.rules import Cut, Hold, Rule, When, Which

AnyRule = TypeVar("AnyRule", bound=Rule)


class Proxy:
    """Passes everything on unless a rule says otherwise. As a context manager it ends with the block."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = f"{HOST}:{broker.ports.proxy}"
        self.requests: Counter[int] = Counter()  # by kind (`Api`)
        self._upstream = (HOST, broker.ports.proxied)
        self._listener = socket.create_server((HOST, broker.ports.proxy))
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._links: dict[Link, threading.Thread] = {}
        self._is_closed = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self, api: int | None = None, when: When = "before", **which: Unpack[Which]) -> Cut:
        """Cut the client off at such a request: before the broker gets it, or after it has answered."""
        return self._add(Cut(api, when, **which))

    def hold(self, api: int, seconds: float | None = None, *, cuts: bool = True, **which: Unpack[Which]) -> Hold:
        """Hold such a request up for a time, or until it is released, and then still deliver it."""
        return self._add(Hold(api, seconds, cuts=cuts, **which))

    def cut_all(self) -> int:
        """Cut every client off now; returns how many connections there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    def clear(self) -> None:
        """Forget all rules, and release what they hold."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.end()
            if isinstance(rule, Hold):
                rule.release()

    def close(self) -> None:
        """Cut all connections; held requests are lost."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname()).close()  # ends the wait for the next client
        self._accepting.join()
        self._listener.close()
        with self._lock:
            links = dict(self._links)
        for link in links:
            link.cut()
        self.clear()
        for thread in links.values():
            thread.join()

    # Its threads

    def _add(self, rule: AnyRule) -> AnyRule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _judge(self, request: Request) -> Rule | None:
        with self._lock:
            self.requests[request.api] += 1
            return next((rule for rule in self._rules if rule.takes(request)), None)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_closed:
                client.close()
                return
            try:
                broker = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            self._begin(Link(client, broker, self._judge))

    def _begin(self, link: Link) -> None:
        thread = threading.Thread(target=self._run, args=(link,), daemon=True)
        with self._lock:
            self._links[link] = thread
        thread.start()

    def _run(self, link: Link) -> None:
        link.run()
        with self._lock:
            del self._links[link]
