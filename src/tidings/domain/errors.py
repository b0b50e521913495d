"""The errors that Tidings raises on purpose, one shallow tree.

TidingsError
|-- Invalid          a request cannot be accepted as it stands; says which field and what to change
|-- Moved            a source was read from a place that is no longer where intake stands
|-- Conflict         what was to be changed is not, or is no longer, as the caller saw it
|-- KeyReused        an idempotency key came again with another request
|-- NotOwner         this process stands by: another one owns the timeline
|-- StoreError       the store cannot be used: newer version, damaged, full
|   `-- NotAllowed   we may read it, but not write: waiting does not help
|-- BusError         Kafka cannot be read now
|-- NotAMember       a consumer group's former member tried to fetch or commit
`-- NotFound         there is no such topic, group or key
"""


class TidingsError(Exception):
    """Base of every error that Tidings raises on purpose."""


class Invalid(TidingsError):
    """A value that cannot be accepted: `field` names it, `detail` says what to change.

    `others` are what else is wrong, where that was easy to tell at once.
    """

    def __init__(self, field: str, detail: str, others: "tuple[Invalid, ...]" = ()) -> None:
        super().__init__(field, detail)
        self.field = field
        self.detail = detail
        self.others = others

    @property
    def all(self) -> "tuple[Invalid, ...]":
        """Everything that is wrong, each for itself."""
        return (self, *self.others)

    def __str__(self) -> str:
        return "; ".join(f"{each.field}: {each.detail}" for each in self.all)


class Moved(TidingsError):
    """What was read of a source does not follow what was taken of it before: somebody else took it meanwhile."""


class Conflict(TidingsError):
    """What was to be changed is not, or is no longer, as the caller saw it; the text says what to do."""


class KeyReused(TidingsError):
    """An idempotency key came again with another request."""


class NotOwner(TidingsError):
    """This process stands by: another one owns the timeline."""


class StoreError(TidingsError):
    """The store cannot be used; the text says why and what to do."""


class NotAllowed(StoreError):
    """The store may be read by us but not written: that does not end by waiting."""


class BusError(TidingsError):
    """Kafka cannot be read now; the text says why."""


class NotAMember(TidingsError):
    """A consumer group's former member tried to fetch or commit; join again."""


class NotFound(TidingsError):
    """There is no such topic, group or key."""
