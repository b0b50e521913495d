"""What follows from the answers of providers: how the delivery stands, and what goes back onto the timeline. Pure."""

from collections.abc import Sequence

import msgspec

from tidings.delivery import errands
from tidings.delivery.deciding import Address, Case, End, Next, Wait, onwards
from tidings.domain.notifications.address_key import address_key, digest
from tidings.domain.notifications.delivery import (
    Accepted,
    Attempt,
    Broken,
    Claim,
    Delivery,
    Part,
    Permanent,
    State,
    Step,
    Temporary,
    Verdict,
    remembered,
)
from tidings.domain.notifications.notification import DeliveryJob
from tidings.domain.notifications.retry_backoff import Backoff, next_try
from tidings.domain.schedules.command import Add

DETAIL_CHARS_MAX = 300
PROVIDER_ID_BYTES_MAX = 1_000
AGAIN_US = 200_000  # after a mistake of ours, for another provider if there is one; its breaker is open by then

_GIVEN_UP = frozenset({"failed"})


class Answer(msgspec.Struct, frozen=True):
    """What a provider said to one message; `number` is that of the device, 0 without several.

    `trial` says that the message tried whether the provider works again.
    """

    number: int
    address: Address
    provider: str
    verdict: Verdict
    trial: bool = False

    @property
    def has_reopened(self) -> bool:
        """Whether it tried in vain: all know that the breaker is open, and another provider may take it at once."""
        if isinstance(self.verdict, Temporary):
            return self.trial and self.verdict.is_provider_failure
        return self.trial and isinstance(self.verdict, Broken)


class Conclusion(msgspec.Struct, frozen=True):
    """How a delivery stands from now on, what must be on the timeline before that is written, what receipts will speak
    of (provider, its id), and the addresses that are dead, with the reason.

    On the timeline is its next turn, if it has one (`errand`, for when), or the letter that says that it was given up.
    """

    delivery: Delivery
    errand: DeliveryJob | None = None
    until: int | None = None
    letter: Add | None = None
    sent: tuple[tuple[str, str], ...] = ()
    dead: tuple[tuple[Address, str], ...] = ()


def claimed(case: Case, providers: Sequence[str], to: Sequence[Address], claim: Claim, now: int) -> Delivery:
    """A delivery whose attempt begins."""
    before = case.delivery
    number = before.attempts[-1].number + 1 if before.attempts else 1
    attempt = Attempt(number, case.channel, "+".join(dict.fromkeys(providers)), now)
    return msgspec.structs.replace(
        before,
        state="processing",
        reason="",
        channel=case.channel,
        address=_written(case, to[0]) if len(to) == 1 else None,
        attempts=(*before.attempts, attempt),
        claim=claim,
        turn=case.errand.attempt,
        parts=parts_of(case, to),
        next_try=None,
        changed=now,
    )


def _written(case: Case, to: Address) -> str:
    """An address as its owner wrote it; a device by its key."""
    return to if isinstance(to, str) else address_key(case.channel, to)


def parts_of(case: Case, to: Sequence[Address]) -> tuple[Part, ...]:
    """The devices of a push. They stay those of its first attempt: one that comes later may be the same with a new
    token, and would be told twice. Who has it sent again by hand wants those that are there now."""
    parts = case.delivery.parts
    if case.channel != "push" or (parts and case.delivery.fresh):
        return parts
    known = {part.digest for part in parts}
    new = [each for each in (digest(case.channel, address) for address in to) if each not in known]
    first = max((part.number for part in parts), default=0) + 1
    return (*parts, *(Part(number, each) for number, each in enumerate(new, start=first)))


def without_attempt(case: Case, decision: Wait | Next | End, now: int) -> Conclusion:
    """What follows from a decision that nothing is sent now."""
    match decision:
        case Wait():
            return _again(
                case, case.delivery, case.errand.channel, decision.until, decision.reason, now, decision.detail
            )
        case Next():
            return _again(case, case.delivery, decision.channel, now, decision.reason, now)
        case End():
            return _end(case, case.delivery, decision.state, decision.reason, now)


def conclude(
    case: Case,
    delivery: Delivery,
    answers: Sequence[Answer],
    later: Wait | None,
    backoff: Backoff,
    share: float,
    now: int,
) -> Conclusion:
    """What follows from the answers to one attempt. `later` says that some devices could not be tried at all."""
    answers = [_keepable(each) for each in answers]
    ended = _ended(delivery, answers, now)
    sent = tuple(
        (each.provider, each.verdict.id)
        for each in answers
        if isinstance(each.verdict, Accepted) and each.verdict.id  # without an id no receipt can speak of it
    )
    dead = tuple(
        (each.address, each.verdict.reason)
        for each in answers
        if isinstance(each.verdict, Permanent) and each.verdict.address_is_dead
    )
    return msgspec.structs.replace(_follow(case, ended, answers, later, backoff, share, now), sent=sent, dead=dead)


def _keepable(answer: Answer) -> Answer:
    """Without an id that no document could be named by: it was taken all the same, and must not be sent again."""
    if not isinstance(answer.verdict, Accepted):
        return answer
    provider_id = answer.verdict.id
    if len(provider_id.encode(errors="replace")) <= PROVIDER_ID_BYTES_MAX and provider_id == _text(provider_id):
        return answer
    return msgspec.structs.replace(answer, verdict=Accepted(""))


def _brief(detail: str) -> str:
    return _text(detail[:DETAIL_CHARS_MAX])


def _text(said: str) -> str:
    """What a provider said, as text that can be written down: halves of surrogate pairs are none."""
    return said.encode(errors="replace").decode()


def _follow(
    case: Case,
    delivery: Delivery,
    answers: Sequence[Answer],
    later: Wait | None,
    backoff: Backoff,
    share: float,
    now: int,
) -> Conclusion:
    channel = case.errand.channel
    verdicts = [answer.verdict for answer in answers]
    failed = [answer for answer in answers if isinstance(answer.verdict, Temporary | Broken)]
    at_once = all(answer.has_reopened for answer in failed)
    waiting = [verdict for verdict in verdicts if isinstance(verdict, Temporary)]
    broken = [verdict for verdict in verdicts if isinstance(verdict, Broken)]
    if waiting:
        asked = max((each.retry_after_us for each in waiting if each.retry_after_us is not None), default=None)
        tried = sum(attempt.channel == case.channel for attempt in delivery.fresh)
        spent = delivery.trying_us + now - delivery.attempts[-1].begun
        moment = next_try(backoff, tried, spent, now, share, asked)
        if moment is not None:
            again = now if at_once else moment
            tired = msgspec.structs.replace(delivery, trying_us=spent + again - now)
            return _again(case, tired, channel, again, waiting[0].reason, now)
        return _given_up(case, delivery, waiting[0].reason, now)
    if broken:
        return _again(case, delivery, channel, now if at_once else now + AGAIN_US, broken[0].reason, now)
    if later is not None:
        return _again(case, delivery, channel, later.until, later.reason, now, later.detail)
    refused = [verdict for verdict in verdicts if isinstance(verdict, Permanent)]
    if len(refused) < len(verdicts) or _has_arrived(delivery):
        return _end(case, delivery, "sent", "", now)
    return _given_up(case, delivery, refused[0].reason, now)


def _given_up(case: Case, delivery: Delivery, reason: str, now: int) -> Conclusion:
    """By the next channel, if some device has not got it already; else for good."""
    if _has_arrived(delivery):
        return _end(case, delivery, "sent", reason, now)
    match onwards(case, "failed", reason):
        case Next(channel=channel):
            return _again(case, delivery, channel, now, reason, now)
        case End(state=state):
            return _end(case, delivery, state, reason, now)


def _has_arrived(delivery: Delivery) -> bool:
    return any(part.outcome == "accepted" for part in delivery.parts)


def _again(
    case: Case, delivery: Delivery, channel: int, moment: int, reason: str, now: int, detail: str = ""
) -> Conclusion:
    """Back onto the timeline, as its next turn; for another channel it passes over the one that it was for."""
    turn = max(delivery.turn, case.errand.attempt) + 1
    errand = msgspec.structs.replace(case.errand, delivery=delivery.name, channel=channel, attempt=turn)
    is_other = channel != case.errand.channel
    if is_other:
        step = Step(now, "passed_over", case.channel, reason=reason, detail=detail)
    else:
        step = Step(now, "pending", case.channel, reason=reason, detail=detail, until=moment)
    after = msgspec.structs.replace(
        remembered(delivery, step),
        state="pending",
        reason=reason,
        channel=case.notification.channels[channel],
        parts=() if is_other else delivery.parts,
        trying_us=0 if is_other else delivery.trying_us,
        claim=None,
        turn=turn,
        next_try=moment,
        changed=now,
    )
    return Conclusion(after, errand, moment)


def renumbered(conclusion: Conclusion) -> Conclusion:
    """The same as the turn after: another schedule has the name of this one."""
    assert conclusion.errand is not None, "only turns have numbers"
    turn = conclusion.errand.attempt + 1
    return msgspec.structs.replace(
        conclusion,
        delivery=msgspec.structs.replace(conclusion.delivery, turn=turn),
        errand=msgspec.structs.replace(conclusion.errand, attempt=turn),
    )


def stranded(case: Case, conclusion: Conclusion, reason: str, now: int) -> Conclusion:
    """The timeline does not take its next turn: it ends here, and says so."""
    state: State = "sent" if _has_arrived(conclusion.delivery) else "failed"
    end = _end(case, conclusion.delivery, state, reason, now)
    return msgspec.structs.replace(end, sent=conclusion.sent, dead=conclusion.dead)


def _end(case: Case, delivery: Delivery, state: State, reason: str, now: int) -> Conclusion:
    last = delivery.attempts[-1] if delivery.attempts else None
    is_sent = state == "sent" and last is not None
    after = msgspec.structs.replace(
        delivery,
        state=state,
        reason=reason,
        claim=None,
        next_try=None,
        turn=max(delivery.turn, case.errand.attempt),
        changed=now,
        sent=now if is_sent else delivery.sent,
        provider=last.provider if is_sent and last is not None else delivery.provider,
        provider_id=last.provider_id if is_sent and last is not None else delivery.provider_id,
    )
    letter = errands.dead_letter(case.tenant, case.errand, after, now) if state in _GIVEN_UP else None
    return Conclusion(after, letter=letter)


def _ended(delivery: Delivery, answers: Sequence[Answer], now: int) -> Delivery:
    """The delivery with what was said to its attempt, which does not count if all of it was our own mistake."""
    verdicts = [answer.verdict for answer in answers]
    refusals = [
        Step(now, each.verdict.reason, delivery.channel, each.provider, detail=_brief(each.verdict.detail))
        for each in answers
        if isinstance(each.verdict, Broken)
    ]
    if len(refusals) == len(answers):
        return remembered(msgspec.structs.replace(delivery, attempts=delivery.attempts[:-1]), *refusals)
    taken = next((verdict.id or None for verdict in verdicts if isinstance(verdict, Accepted)), None)
    telling = next((verdict for verdict in verdicts if not isinstance(verdict, Accepted)), None)
    attempt = msgspec.structs.replace(
        delivery.attempts[-1],
        ended=now,
        outcome="accepted" if telling is None else telling.reason,
        detail="" if telling is None else _brief(telling.detail),
        provider_id=taken,
        may_have_arrived=any(isinstance(verdict, Temporary) and verdict.may_have_arrived for verdict in verdicts),
    )
    by_number = {answer.number: answer.verdict for answer in answers}
    parts = tuple(_part(part, by_number.get(part.number)) for part in delivery.parts)
    return msgspec.structs.replace(delivery, attempts=(*delivery.attempts[:-1], attempt), parts=parts)


def _part(part: Part, verdict: Verdict | None) -> Part:
    match verdict:
        case Accepted(id=provider_id):
            return msgspec.structs.replace(part, outcome="accepted", provider_id=provider_id)
        case Permanent():
            return msgspec.structs.replace(part, outcome="refused")
        case _:
            return part
