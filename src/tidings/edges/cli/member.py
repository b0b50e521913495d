"""`tail --group`: a member of a consumer group. What was shown is committed; what was not, others get."""

from collections.abc import Callable
from typing import Any

from tidings.edges.cli.client import Client, segment
from tidings.edges.cli.exits import Exit, Failure
from tidings.edges.cli.patience import Patience
from tidings.edges.cli.screen import Screen

BATCH_RECORDS = 100
WAIT = "1s"

Show = Callable[[dict[str, Any]], bool]


class Member:
    """One member of one group of one topic."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self._client = client
        self._path = f"/v1/topics/{segment(topic)}/groups/{segment(group)}"
        self._place: dict[str, Any] = {}
        self._in_doubt = False

    def join(self) -> None:
        """Become a member, again if need be: under the name that we had, so that we keep our partitions."""
        self._settle(self._call("join", {"member": self._place["member"]} if self._place else {}))
        self._in_doubt = False

    def fetch(self) -> list[dict[str, Any]]:
        """The next records, waiting a little for one.

        If the answer is lost, what it held counts as ours: we join again, and what is not committed comes again.
        """
        if self._in_doubt:
            self.join()
        try:
            fetched = self._call("fetch", {**self._place, "limit": BATCH_RECORDS, "wait": WAIT})
        except Failure as failure:
            self._in_doubt = failure.code != Exit.CONFLICT
            raise
        records: list[dict[str, Any]] = fetched["records"]
        if not records:
            self.heartbeat()
        return records

    def heartbeat(self) -> None:
        """Stay, and learn which partitions are ours now."""
        self._settle(self._call("heartbeat", self._place))

    def commit(self, offsets: dict[int, int]) -> None:
        """Keep where we stand."""
        self._call("commit", {**self._place, "offsets": offsets})

    def leave(self) -> None:
        """Hand over at once."""
        self._call("leave", self._place)

    def _settle(self, membership: dict[str, Any]) -> None:
        self._place = {name: membership[name] for name in ("member", "generation")}

    def _call(self, verb: str, body: dict[str, Any]) -> Any:
        return self._client.call("POST", f"{self._path}/{verb}", body=body)


def consume(client: Client, topic: str, group: str, show: Show, screen: Screen) -> None:
    """Show what this member gets until it was enough."""
    member = Member(client, topic, group)
    member.join()
    patience = Patience(screen)
    try:
        while _turn(member, show, patience):
            pass
    finally:
        _quietly(member.leave)


def _turn(member: Member, show: Show, patience: Patience) -> bool:
    """One batch; False if that was enough."""
    try:
        records = member.fetch()
    except Failure as failure:
        _recover(member, failure, patience)
        return True
    patience.renew()
    offsets: dict[int, int] = {}
    try:
        for record in records:
            more = show(record)
            offsets[record["partition"]] = record["offset"] + 1
            if not more:
                return False
    finally:
        if offsets:
            _quietly(lambda: member.commit(offsets))
    return True


def _recover(member: Member, failure: Failure, patience: Patience) -> None:
    """Take one's place in the group as it is now; wait if the server is away."""
    if failure.code != Exit.CONFLICT:
        patience.check(failure)
        patience.wait()
        return
    try:
        member.heartbeat()
    except Failure as refused:
        if refused.code != Exit.CONFLICT:
            return
        member.join()


def _quietly(act: Callable[[], None]) -> None:
    """What fails here shows again: as a repeat for whoever gets the records next."""
    try:
        act()
    except Failure:
        return
