"""The errors that Tidings raises on purpose, one shallow tree.

TidingsError
|-- Invalid          a request cannot be accepted; names the field and what to change
|-- Moved            a source was read from a position other than the committed one
|-- Conflict         the object to be changed is not in the state that the caller expects
|-- KeyReused        an idempotency key was used again with another request
|-- NotOwner         this process is a standby: another one owns the timeline
|-- StoreError       the store cannot be used: newer version, damaged, full
|   `-- NotAllowed   the store can be read but not written: waiting does not help
|-- BusError         Kafka cannot be read now
|-- NotAMember       a former member of a consumer group tried to fetch or commit
`-- NotFound         there is no such topic, group or key
"""

from collections.abc import Callable


class TidingsError(Exception):
    """Base of every error that Tidings raises on purpose."""


class Invalid(TidingsError):
    """A value cannot be accepted: `field` names it, `detail` says what is wrong and what to change.

    `others` are further errors of the same request, if they were found at once.
    """

    def __init__(self, field: str, detail: str, others: "tuple[Invalid, ...]" = ()) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail
        self.others = others

    @property
    def all(self) -> "tuple[Invalid, ...]":
        """This error and the others."""
        return (self, *self.others)

    def __str__(self) -> str:
        return "; ".join(f"{each.field}: {each.detail}" for each in self.all)


def check_all(*checks: Callable[[], object]) -> None:
    """Run every check, so that an error names all wrong fields at once, each with its first error."""
    found: dict[str, Invalid] = {}
    for check in checks:
        try:
            check()
        except Invalid as invalid:
            for each in invalid.all:
                found.setdefault(each.field, each)
    if found:
        first, *others = found.values()
        raise Invalid(first.field, first.detail, tuple(others))


class Moved(TidingsError):
    """A batch of a source does not begin at the committed position: another process has committed since."""


class Conflict(TidingsError):
    """The object to be changed is not in the state that the caller expects; the text says what to do."""


class KeyReused(TidingsError):
    """An idempotency key was used again with another request."""

    def __init__(self) -> None:
        super().__init__("this Idempotency-Key was used with another body: use a new key for a new request")


class NotOwner(TidingsError):
    """This process is a standby: another one owns the timeline."""


class StoreError(TidingsError):
    """The store cannot be used; the text says why and what to do.

    `concerns_all` is False if other calls may succeed: this one waited too long for a row, for example.
    """

    concerns_all = True


class NotAllowed(StoreError):
    """The store can be read but not written; waiting does not help."""


class BusError(TidingsError):
    """Kafka cannot be read now; the text says why."""


class NotAMember(TidingsError):
    """A former member of a consumer group tried to fetch or commit; it must join again."""


class NotFound(TidingsError):
    """There is no such topic, group or key."""
