"""Random scripts of what users, clients, providers and time do, and a player that returns the states they end in.

A script is plain data, so that several stores, and several versions of the code, can play the same one. What a provider
answers depends only on the message and on how often it was sent before, so no order of sending changes it.
"""

import random
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from tidings.domain.errors import TidingsError
from tidings.domain.notifications.delivery import Accepted, Broken, DeliveryReceipt, Permanent, Temporary, Verdict
from tidings.domain.notifications.message import ChannelName, Rendered, channel_of
from tidings.testing import SimulatedClock, eventually

Document = dict[str, Any]
Action = tuple[str, Document]

SECOND_US = 1_000_000
BEGIN = datetime(2026, 11, 20, 9, tzinfo=UTC)
CHANNELS: tuple[ChannelName, ...] = ("email", "sms", "push", "webhook", "in_app")
ZONES = ("UTC", "Europe/Vienna", "America/New_York", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe")
CATEGORIES = ("transactional", "news", "alerts")
PAUSES_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400)
TURNS_MAX = 400
IDLE_S = 60.0
PROVIDERS: dict[str, tuple[ChannelName, ...]] = {
    "mail": ("email",),
    "mail_too": ("email",),
    "text": ("sms",),
    "devices": ("push",),
    "hook": ("webhook",),
    "inbox": ("in_app",),
}


class Script:
    """What happens, made from a seed; with `any_order` the order of deliveries that are due at once has no effect.

    Otherwise it has some: which of two providers is next, which call tries a stopped provider again, and which message
    is the first to find that an address is dead.
    """

    def __init__(self, seed: int, *, any_order: bool = False) -> None:
        self.seed = seed
        self.providers = {name: each for name, each in PROVIDERS.items() if not any_order or name != "mail_too"}
        self.any_order = any_order
        self._random = random.Random(seed)
        self.begin = BEGIN + timedelta(minutes=self._random.randrange(366 * 24 * 60))
        self.trouble = self._random.choice((0.0, 0.1, 0.3, 0.6))
        self.users = {f"u{number}": self._profile(number) for number in range(self._random.randint(1, 3))}
        self._notifications = 0
        self.actions: list[Action] = [self._action() for _ in range(self._random.randint(5, 14))]

    def _profile(self, number: int) -> Document:
        chance = self._random
        profile: Document = {"name": f"User {number}", "zone": chance.choice(ZONES), "variables": {"plan": "gold"}}
        if chance.random() < 0.9:
            profile["email"] = f"u{number}@example.com"
        if chance.random() < 0.6:
            profile["phone"] = f"+1555010{number}"
        if chance.random() < 0.5:
            profile["webhook"] = f"https://hooks.example/{number}"
        tokens = [f"device-{number}-{each}-" + "x" * 40 for each in range(chance.choice((0, 0, 1, 2)))]
        profile["devices"] = [{"platform": "fcm", "token": token} for token in tokens]
        profile["preferences"] = self._preferences()
        if chance.random() < 0.4:
            profile["quiet"] = self._quiet()
        return profile

    def _preferences(self) -> Document:
        keys = [*CHANNELS, *CATEGORIES[1:], "email/news", "sms/alerts"]
        return {
            key: self._random.random() < 0.5 for key in self._random.sample(keys, self._random.choice((0, 0, 1, 2)))
        }

    def _quiet(self) -> Document:
        first = self._random.randrange(24)
        hours = f"{first:02}:00-{(first + self._random.randint(1, 12)) % 24:02}:30"
        return {"hours": hours, "then": self._random.choice(("defer", "defer", "drop"))}

    def _user(self) -> str:
        return self._random.choice(list(self.users))

    def _action(self) -> Action:
        kinds = {"notify": 9, "wait": 6, "cancel": 3, "receipt": 2, "suppress": 0.7, "allow": 0.4, "patch": 0.8}
        kinds |= {"retry": 0.6, "erase": 0.2, "delete": 0.2}
        kind = self._random.choices(list(kinds), list(kinds.values()))[0]
        match kind:
            case "notify":
                return kind, self._notification()
            case "wait":
                return kind, {"us": int(self._random.choice(PAUSES_S) * self._random.uniform(0.2, 2) * SECOND_US)}
            case "receipt":
                state = self._random.choice(("delivered", "delivered", "bounced", "complained", "failed"))
                return kind, {"nth": self._random.random(), "state": state, "suppress": self._random.random() < 0.3}
            case "suppress" | "allow":
                return kind, {"user": self._user(), "channel": self._random.choice(CHANNELS[:2])}
            case "patch":
                return kind, {"user": self._user(), "changes": self._changes()}
            case "erase" | "delete":
                return kind, {"user": self._user()}
            case _:
                return kind, {"nth": self._random.random()}

    def _changes(self) -> Document:
        choices: list[Document] = [
            {"preferences": self._preferences()},
            {"email": "moved@example.com"},
            {"phone": None},
            {"quiet": self._quiet()},
            {"zone": self._random.choice(ZONES)},
        ]
        return self._random.choice(choices)

    def _notification(self) -> Document:
        chance = self._random
        self._notifications += 1
        asked: Document = {"id": f"n{self._notifications}", "category": chance.choice(CATEGORIES)}
        asked["priority"] = chance.choice(("high", "normal", "normal", "low"))
        if len(self.users) > 1 and chance.random() < 0.2:
            asked["users"] = list(self.users)
        else:
            asked["user"] = self._user()
        if chance.random() < 0.5:
            asked["words"] = {"title": "Tea", "text": f"Tea is ready ({self._notifications})."}
        else:
            asked |= {"template": chance.choice(("plain", "brief")), "variables": {"what": "nine"}}
        asked |= self._channels() | self._time()
        if chance.random() < 0.1:
            asked |= {"dedupe_key": chance.choice("ab"), "dedupe_window": chance.choice(("1h", "2d"))}
        if chance.random() < 0.15:
            asked["expires_after"] = chance.choice(("30s", "1h", "1d"))
        return asked

    def _channels(self) -> Document:
        kind, some = self._random.random(), self._random.sample(CHANNELS, self._random.randint(2, 3))
        if kind < 0.35:
            return {"channel": some[0]}
        if kind < 0.6:
            return {"channels": some}
        if kind < 0.75:
            return {"channels": some, "spread": "all"}
        return {"channels": "all"} if kind < 0.85 else {}

    def _time(self) -> Document:
        kind = self._random.random()
        if kind < 0.3:
            return {}
        if kind < 0.6:
            return {"at": f"+{self._random.choice(PAUSES_S) * self._random.uniform(0.1, 3):.3f}s"}
        if kind < 0.8:
            day = self.begin.date() + timedelta(days=self._random.randint(1, 3))
            return {"at": f"{day}T{self._random.randrange(24):02}:{self._random.choice((0, 15, 30)):02}"}
        start = self.begin + timedelta(seconds=self._random.randrange(2 * 86_400))
        length = self._random.choice(("PT1H", "P1D", "PT20S"))
        return {"every": f"R{self._random.randint(1, 3)}/{start:%Y-%m-%dT%H:%M:%SZ}/{length}"}


class ScriptedProvider:
    """A provider whose answer follows from the seed, the message and the number of the call."""

    def __init__(self, name: str, script: Script, accepted: list[tuple[str, str, str]]) -> None:
        self.name = name
        self._script = script
        self._accepted = accepted
        self._calls: Counter[str] = Counter()

    deduplicates = True

    def accepts(self, channel: ChannelName, address: object) -> bool:
        del address
        return channel in PROVIDERS[self.name]

    def takes(self, message: Rendered) -> bool:
        return self.accepts(channel_of(message), None)

    async def send(self, message: Rendered) -> Verdict:
        self._calls[message.id] += 1
        text = f"{self._script.seed}/{self.name}/{message.id}/{self._calls[message.id]}"
        share = zlib.crc32(text.encode()) / (1 << 32)
        verdict = self._verdict(share / self._script.trouble) if share < self._script.trouble else None
        if verdict is not None:
            return verdict
        self._accepted.append((self.name, f"p-{message.id}", str(message.to)))
        return Accepted(f"p-{message.id}")

    def _verdict(self, share: float) -> Verdict:
        """One failure of many, for a share from 0 to 1."""
        failures: list[Temporary | Permanent | Broken] = [
            Temporary("provider_error"),
            Temporary("timeout", may_have_arrived=True),
            Temporary("rate_limited", retry_after_us=90 * SECOND_US),
            Temporary("address_deferred"),
            Temporary("unreachable", concerns_provider=False),
            Permanent("address_refused"),
            Permanent("address_gone", address_is_dead=True),
            Permanent("content_refused"),
            Broken("credentials_refused"),
        ]
        if self._script.any_order:
            failures = [each for each in failures if not isinstance(each, Broken) and "gone" not in each.reason]
        return failures[int(share * len(failures))]

    async def close(self) -> None:
        """Nothing is open."""


class Stage(Protocol):
    """A store with its services and a worker, which releases and delivers only when it is told to."""

    clock: SimulatedClock

    async def do(self, kind: str, about: Document) -> str:
        """Carry out an action of a client; returns the outcome."""
        ...

    async def release(self) -> int:
        """Release what is due and let the worker finish; returns how many records were released."""
        ...

    def next_due(self) -> int | None:
        """When something is due next."""
        ...

    async def deliveries(self) -> list[str]:
        """The names of all deliveries, in order."""
        ...

    async def end(self) -> Document:
        """The states in the end."""
        ...


class Player:
    """Plays a script on a stage."""

    def __init__(self, script: Script, stage: Stage, accepted: list[tuple[str, str, str]]) -> None:
        self._script = script
        self._stage = stage
        self._accepted = accepted
        self._asked: list[str] = []
        self._outcomes: list[str] = []

    async def play(self) -> Document:
        """All actions, then time until nothing is left to do."""
        for user, profile in self._script.users.items():
            await self._stage.do("put", {"user": user, "profile": profile})
        for kind, about in self._script.actions:
            if kind == "wait":
                await self._pass(about["us"])
            else:
                self._outcomes.append(f"{kind}: {await self._do(kind, about)}")
            await self._settle()
        for _ in range(TURNS_MAX):
            due = self._stage.next_due()
            if due is None:
                break
            await self._pass(max(0, due - self._stage.clock.now()))
        return {"outcomes": self._outcomes, "sent": sorted(self._accepted), **await self._stage.end()}

    async def _do(self, kind: str, about: Document) -> str:
        chosen = about
        if kind == "notify":
            self._asked.append(about["id"])
        elif kind == "cancel":
            chosen = {"id": _nth(self._asked, about["nth"])}
        elif kind == "retry":
            chosen = {"name": _nth(await self._stage.deliveries(), about["nth"])}
        elif kind == "receipt":
            found = _nth(sorted(self._accepted), about["nth"])
            chosen = {**about, "accepted": found}
        if None in chosen.values():
            return "nothing to do it with"
        try:
            return await self._stage.do(kind, chosen)
        except TidingsError as error:
            return f"{type(error).__name__}: {error}"

    async def _pass(self, us: int) -> None:
        """Let time pass, from one due time to the next."""
        clock = self._stage.clock
        until = clock.now() + us
        for _ in range(TURNS_MAX):
            due = self._stage.next_due()
            if due is None or due > until:
                break
            clock.advance(max(0, due - clock.now()))
            await self._settle()
        clock.advance(max(0, until - clock.now()))
        await self._settle()

    async def _settle(self) -> None:
        while await self._stage.release():
            pass


def receipt_of(about: Document) -> DeliveryReceipt:
    """A receipt for a message that a provider accepted."""
    _, provider_id, address = about["accepted"]
    return DeliveryReceipt(
        about["state"], provider_id, f"e-{about['nth']}", address=address, suppress=about["suppress"]
    )


def _nth(found: list[Any], share: float) -> Any:
    return found[int(share * len(found))] if found else None


async def until_idle(is_idle: Callable[[], Awaitable[bool]]) -> None:
    """Let all tasks run until a condition holds."""
    await eventually(is_idle, IDLE_S, poll_s=0)
