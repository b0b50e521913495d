"""The terms of a standing schedule, and how stores keep them."""

import msgspec

from tidings.domain.lateness import Decision, Lateness, Pardon, Policy, decide
from tidings.domain.when import When, occurrence


class Terms(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When a standing schedule falls due, and how late it may be.

    `tzdata` is the version of the zones' rules by which its pending occurrence was computed, `rules` the digest of its
    zone's own; None where it has no zone. `revised` says that a change of a calendar or a zone went over it: what it
    was first taken for does not follow from it any more.
    """

    when: When
    lateness: Lateness
    jitter_us: int
    tzdata: str | None = None
    rules: str | None = None
    pardon: Pardon | None = None
    revised: bool = False

    def decide(self, n: int, now: int) -> Decision:
        """What to do at `now` while occurrence n is pending."""
        return decide(self.when, n, now - self.jitter_us, self.lateness, self.pardon)

    def due(self, n: int) -> int | None:
        """When occurrence n is due, jitter included."""
        at = occurrence(self.when, n)
        return None if at is None else at + self.jitter_us

    def pardoned(self, policy: Policy | None, now: int) -> "Terms":
        """The same after a pause that ends now, with a choice of what becomes of what was missed."""
        pardon = None if policy is None else Pardon(policy, now - self.jitter_us)
        return msgspec.structs.replace(self, pardon=pardon)


encode_terms = msgspec.msgpack.Encoder().encode
decode_terms = msgspec.msgpack.Decoder(Terms).decode
