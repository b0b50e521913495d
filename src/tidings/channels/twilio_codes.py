"""Twilio's error dictionary, as far as a message can meet it: in the answer to a request, and in a status callback.

https://www.twilio.com/docs/api/errors
"""

from tidings.domain.notifications.delivery import Broken, Permanent, Temporary

_LATER = {
    20429: "rate_limited",  # too many requests
    21611: "rate_limited",  # the queue of this sender is full
    30001: "rate_limited",  # queue overflow
    30022: "rate_limited",  # US A2P throughput
    63038: "rate_limited",  # the account's messages of this day
    20500: "provider_error",
    20503: "provider_error",
    21730: "provider_error",  # maintenance
}
_DEAD = frozenset({21211, 21217, 21614, 30005, 30006})  # no such number, or one that takes no text messages
# Not this number, from here, now. 21608 and 21659 depend on the number too: a trial account reaches verified numbers
# alone, and a short code those of its country.
_REFUSED = frozenset({21265, 21408, 21604, 21608, 21612, 21635, 21659, 30003, 30004})
_UNSUBSCRIBED = frozenset({21610})  # they answered STOP
_CONTENT = frozenset({21602, 21617, 21619, 21620, 21623, 30007, 30034})
_TOO_LARGE = 21617
_SENDER = frozenset({21212, 21603, 21606, 21607, 21660, 21661, 21701, 21703, 21705, 21712})
_ACCOUNT = frozenset({20005, 20006, 30002, 90010})  # suspended


def judge_code(code: int, detail: str) -> Temporary | Permanent | Broken | None:
    """What a code of the dictionary means, in an answer as in a status callback; None if it is not in our table."""
    if code in _LATER:
        return Temporary("rate_limited" if _LATER[code] == "rate_limited" else "provider_error", detail)
    if code in _DEAD:
        return Permanent("address_gone", detail, address_is_dead=True)
    if code in _UNSUBSCRIBED:
        return Permanent("unsubscribed", detail, address_is_dead=True)
    if code in _REFUSED:
        return Permanent("address_refused", detail)
    if code in _CONTENT:
        return Permanent("too_large" if code == _TOO_LARGE else "content_refused", detail)
    if code == 20003:
        return Broken("credentials_refused", detail)
    if code in _SENDER:
        return Broken("sender_refused", detail)
    return Broken("account_refused", detail) if code in _ACCOUNT else None


def is_about_message(code: object) -> bool:
    """Whether a code that is not in our table is of those about messages (21xxx, 30xxx), not about the account."""
    return isinstance(code, int) and (21_000 <= code < 22_000 or 30_000 <= code < 31_000)
