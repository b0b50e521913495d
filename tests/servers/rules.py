"""Rules of the proxy: requests that are cut or delayed."""

import random
import threading
from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

from tests.servers.frames import Answer, Request

WAIT_S_MAX = 30.0
When = Literal["before", "after"]


class Which(TypedDict, total=False):
    """Which requests of a kind: from the `nth` on, once or this many `times` (None: always), each with a `chance`."""

    nth: int
    times: int | None
    chance: float
    seed: int
    client_id: str


class Rule:
    """Strikes requests of one kind, or of any (None), and records the answers of the broker."""

    def __init__(self, api: int | None, **which: Unpack[Which]) -> None:
        self.strikes = 0
        self.answers: list[Answer] = []
        self._api = api
        self._client_id = which.get("client_id")
        self._spared = which.get("nth", 1) - 1
        self._left = which.get("times", 1)
        self._chance = which.get("chance", 1.0)
        self._random = random.Random(which.get("seed", 0))
        self._is_ended = False
        self._news = threading.Condition()

    def takes(self, request: Request) -> bool:
        """Whether it strikes this one."""
        if self._api not in {None, request.api} or self._client_id not in {None, request.client_id}:
            return False
        with self._news:
            if self._spared > 0:
                self._spared -= 1
                return False
            if self._left == 0 or self._random.random() >= self._chance:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def give_back(self) -> None:
        """A request it took was lost with its connection before it could strike: it may take another."""
        with self._news:
            if self._left is not None and not self._is_ended:
                self._left += 1

    def end(self) -> None:
        """Strike no more."""
        with self._news:
            self._is_ended = True
            self._left = 0

    def count_strike(self) -> None:
        """The proxy has done it."""
        with self._news:
            self.strikes += 1
            self._news.notify_all()

    def add_answer(self, answer: Answer) -> None:
        """The broker has answered a request that was struck."""
        with self._news:
            self.answers.append(answer)
            self._news.notify_all()

    def wait_for_strikes(self, count: int = 1, timeout_s: float = WAIT_S_MAX) -> None:
        """Wait until it has struck this often; with a cut, the client is cut off by then."""
        self._wait_for(lambda: self.strikes >= count, f"{count} strikes", timeout_s)

    def wait_for_answers(self, count: int = 1, timeout_s: float = WAIT_S_MAX) -> list[Answer]:
        """Wait for this many answers of the broker to requests that were struck."""
        self._wait_for(lambda: len(self.answers) >= count, f"{count} answers", timeout_s)
        return list(self.answers)

    def _wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        with self._news:
            if not self._news.wait_for(condition, timeout_s):
                raise TimeoutError(f"no {what} within {timeout_s} s, but {self.strikes} and {len(self.answers)}")


class Cut(Rule):
    """Cuts the client off: before the broker gets the request, or after it has carried it out, unheard."""

    def __init__(self, api: int | None, when: When, **which: Unpack[Which]) -> None:
        super().__init__(api, **which)
        self.when = when


class Hold(Rule):
    """Holds requests up for a time, or until `release`; then the broker gets them, on the connection they came by.

    With `cuts`, the client is cut off meanwhile, and nobody hears the answer but this rule.
    """

    def __init__(self, api: int | None, seconds: float | None, *, cuts: bool, **which: Unpack[Which]) -> None:
        super().__init__(api, **which)
        self.cuts = cuts
        self._seconds = seconds
        self._released = threading.Event()

    def wait_for_release(self) -> None:
        """As long as requests are held."""
        self._released.wait(self._seconds)

    def release(self) -> None:
        """Let go of what is held and hold nothing more up."""
        self.end()
        self._released.set()
