"""What follows from a decision or from the answers of providers: the next state of a delivery, and its next turn. Pure.

A transition has at most one command for the timeline: the schedule of the next turn, or a dead letter. It is committed
together with the delivery's row.
"""

from collections.abc import Sequence

import msgspec

from tidings.delivery.rows import PROVIDER_ID_BYTES_MAX
from tidings.delivery.worker import job as jobs
from tidings.delivery.worker.context import DeliveryContext
from tidings.delivery.worker.policy import Defer, Fallback, Finish, fallback_or_finish
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
from tidings.domain.schedules.command import Add, Outcome
from tidings.ports import Address
from tidings.ports.tables import Put

DETAIL_CHARS_MAX = 300
REASON_CHARS_MAX = 200
AGAIN_US = 200_000  # after an error in our settings, for another provider if there is one; the breaker is open by then

_DEAD = frozenset({"failed"})


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The verdict of a provider on one message; `number` is that of the device, 0 if there are not several.

    `trial` says that the call was the trial of a half-open circuit breaker. `message` is our own message id: a receipt
    for a provider that uses it as its own finds the delivery without a row.
    """

    number: int
    address: Address
    provider: str
    verdict: Verdict
    trial: bool = False
    message: str = ""

    @property
    def has_reopened(self) -> bool:
        """Whether a trial failed: the breaker is open for all workers, and another provider may be tried at once."""
        if isinstance(self.verdict, Temporary):
            return self.trial and self.verdict.is_provider_failure
        return self.trial and isinstance(self.verdict, Broken)


class ProviderId(msgspec.Struct, frozen=True, gc=False):
    """The id that a provider gave to a message; `row_version` is that of the receipts that came for it before."""

    provider: str
    id: str
    row_version: int = 0


class Transition(msgspec.Struct, frozen=True, gc=False):
    """The next state of a delivery, and what is committed with it.

    `job` and `until` are its next turn, if it has one; `letter` is its dead letter. `accepted` are the ids that
    providers gave it, and `dead` the addresses that do not exist any more, with the reason. `entry` is the row of a
    delivery to an inbox.
    """

    delivery: Delivery
    job: DeliveryJob | None = None
    until: int | None = None
    letter: Add | None = None
    accepted: tuple[ProviderId, ...] = ()
    dead: tuple[tuple[Address, str], ...] = ()
    entry: Put | None = None

    def command(self, context: DeliveryContext) -> Add | None:
        """What is put on the timeline."""
        if self.job is None or self.until is None:
            return self.letter
        return jobs.retry_schedule(context.tenant, context.notification, self.job, self.until)


def claimed(
    context: DeliveryContext, providers: Sequence[str], to: Sequence[Address], claim: Claim, now: int
) -> Delivery:
    """The delivery with an attempt that begins."""
    before = context.delivery
    number = before.attempts[-1].number + 1 if before.attempts else 1
    attempt = Attempt(number, context.channel, "+".join(dict.fromkeys(providers)), now)
    return msgspec.structs.replace(
        before,
        state="processing",
        reason="",
        channel=context.channel,
        address=_written(context, to[0]) if len(to) == 1 else None,
        attempts=(*before.attempts, attempt),
        claim=claim,
        turn=context.job.attempt,
        parts=parts_of(context, to),
        next_try=None,
        changed=now,
    )


def delivered(context: DeliveryContext, provider: str, message: str, entry: Put, now: int) -> Transition:
    """The end of a delivery to an inbox, whose entry is written with it: its attempt begins and ends at once."""
    before, user = context.delivery, context.user
    assert user is not None, "only a user has an inbox"
    number = before.attempts[-1].number + 1 if before.attempts else 1
    attempt = Attempt(number, context.channel, provider, now, now, "accepted", provider_id=message)
    after = msgspec.structs.replace(
        before,
        state="sent",
        reason="",
        channel=context.channel,
        address=user.id,
        attempts=(*before.attempts, attempt),
        claim=None,
        turn=context.job.attempt,
        next_try=None,
        changed=now,
        sent=now,
        provider=provider,
        provider_id=message,
    )
    return Transition(after, entry=entry)


def unclaimed(context: DeliveryContext, now: int) -> Transition:
    """The delivery as it was before its claim, because no call was made: the same turn goes on."""
    before = context.delivery
    state: State = "pending" if before.state == "processing" else before.state
    return Transition(msgspec.structs.replace(before, state=state, claim=None, turn=context.job.attempt, changed=now))


def _written(context: DeliveryContext, to: Address) -> str:
    """An address as its owner wrote it; a device by its key."""
    return to if isinstance(to, str) else address_key(context.channel, to)


def parts_of(context: DeliveryContext, to: Sequence[Address]) -> tuple[Part, ...]:
    """The devices of a push. They stay those of its first attempt: a device that appears later may be one of them with
    a new token, and would get the message twice. A manual retry goes to the devices that there are now."""
    parts = context.delivery.parts
    if context.channel != "push" or (parts and context.delivery.fresh):
        return parts
    known = {part.digest for part in parts}
    new = [each for each in (digest(context.channel, address) for address in to) if each not in known]
    first = max((part.number for part in parts), default=0) + 1
    return (*parts, *(Part(number, each) for number, each in enumerate(new, start=first)))


def after_decision(context: DeliveryContext, decision: Defer | Fallback | Finish, now: int) -> Transition:
    """What follows from a decision not to send now."""
    delivery = context.delivery
    match decision:
        case Defer():
            return _again(context, delivery, context.job.channel, decision.until, decision.reason, now, decision.detail)
        case Fallback():
            return _again(context, delivery, decision.channel, now, decision.reason, now)
        case Finish():
            return _end(context, delivery, decision.state, decision.reason, now)


def after_answers(
    context: DeliveryContext,
    delivery: Delivery,
    answers: Sequence[Answer],
    later: Defer | None,
    backoff: Backoff,
    share: float,
    now: int,
) -> Transition:
    """What follows from the answers to one attempt. `later` says that some devices could not be tried at all."""
    answers = [_storable(each) for each in answers]
    if len(answers) == 1 and later is None and not delivery.parts and isinstance(answers[0].verdict, Accepted):
        return _accepted(context, delivery, answers[0], answers[0].verdict.id, now)
    ended = _ended(delivery, answers, now)
    accepted = tuple(
        ProviderId(each.provider, each.verdict.id)
        for each in answers
        if isinstance(each.verdict, Accepted) and each.verdict.id and each.verdict.id != each.message
    )
    dead = tuple(
        (each.address, each.verdict.reason)
        for each in answers
        if isinstance(each.verdict, Permanent) and each.verdict.address_is_dead
    )
    transition = _next_transition(context, ended, answers, later, backoff, share, now)
    return msgspec.structs.replace(transition, accepted=accepted, dead=dead)


def _accepted(context: DeliveryContext, delivery: Delivery, answer: Answer, provider_id: str, now: int) -> Transition:
    """What follows if a message for one address was accepted: the same as below, in fewer steps, for most messages."""
    *before, last = delivery.attempts
    attempt = msgspec.structs.replace(last, ended=now, outcome="accepted", provider_id=provider_id or None)
    after = msgspec.structs.replace(
        delivery,
        state="sent",
        reason="",
        attempts=(*before, attempt),
        claim=None,
        next_try=None,
        turn=max(delivery.turn, context.job.attempt),
        changed=now,
        sent=now,
        provider=attempt.provider,
        provider_id=attempt.provider_id,
    )
    is_own = not provider_id or provider_id == answer.message
    return Transition(after, accepted=() if is_own else (ProviderId(answer.provider, provider_id),))


def _storable(answer: Answer) -> Answer:
    """The answer without an id that cannot be a key: the message was accepted, and must not be sent again."""
    if not isinstance(answer.verdict, Accepted):
        return answer
    provider_id = answer.verdict.id
    if provider_id == answer.message:
        return answer
    is_short = len(provider_id.encode(errors="replace")) <= PROVIDER_ID_BYTES_MAX
    if is_short and provider_id == _text(provider_id) and "\0" not in provider_id:
        return answer
    return msgspec.structs.replace(answer, verdict=Accepted(""))


def _brief(detail: str) -> str:
    return _text(detail[:DETAIL_CHARS_MAX])


def _text(given: str) -> str:
    """A text of a provider without lone surrogates, which cannot be stored."""
    return given.encode(errors="replace").decode()


def _next_transition(
    context: DeliveryContext,
    delivery: Delivery,
    answers: Sequence[Answer],
    later: Defer | None,
    backoff: Backoff,
    share: float,
    now: int,
) -> Transition:
    channel = context.job.channel
    verdicts = [answer.verdict for answer in answers]
    failed = [answer for answer in answers if isinstance(answer.verdict, Temporary | Broken)]
    at_once = all(answer.has_reopened for answer in failed)
    waiting = [verdict for verdict in verdicts if isinstance(verdict, Temporary)]
    broken = [verdict for verdict in verdicts if isinstance(verdict, Broken)]
    if waiting:
        asked = max((each.retry_after_us for each in waiting if each.retry_after_us is not None), default=None)
        outcomes = [attempt.outcome for attempt in delivery.fresh if attempt.channel == context.channel]
        spent = delivery.trying_us + now - delivery.attempts[-1].begun
        limited = outcomes.count("rate_limited")
        moment = next_try(backoff, len(outcomes), spent, now, share, asked, limited=limited)
        if moment is not None:
            again = now if at_once else moment
            longer = msgspec.structs.replace(delivery, trying_us=spent + again - now)
            return _again(context, longer, channel, again, waiting[0].reason, now)
        return _given_up(context, delivery, waiting[0].reason, now)
    if broken:
        return _again(context, delivery, channel, now if at_once else now + AGAIN_US, broken[0].reason, now)
    if later is not None:
        return _again(context, delivery, channel, later.until, later.reason, now, later.detail)
    refused = [verdict for verdict in verdicts if isinstance(verdict, Permanent)]
    if len(refused) < len(verdicts) or delivery.has_arrived:
        return _end(context, delivery, "sent", "", now)
    return _given_up(context, delivery, refused[0].reason, now)


def _given_up(context: DeliveryContext, delivery: Delivery, reason: str, now: int) -> Transition:
    """The next channel, unless a device has got it already; otherwise the end."""
    if delivery.has_arrived:
        return _end(context, delivery, "sent", reason, now)
    match fallback_or_finish(context, "failed", reason):
        case Fallback(channel=channel):
            return _again(context, delivery, channel, now, reason, now)
        case Finish(state=state):
            return _end(context, delivery, state, reason, now)


def _again(
    context: DeliveryContext, delivery: Delivery, channel: int, moment: int, reason: str, now: int, detail: str = ""
) -> Transition:
    """Back to the timeline as its next turn, in the same channel or in another."""
    turn = max(delivery.turn, context.job.attempt) + 1
    job = msgspec.structs.replace(context.job, delivery=delivery.name, channel=channel, attempt=turn)
    is_other = channel != context.job.channel
    if is_other:
        step = Step(now, "passed_over", context.channel, reason=reason, detail=detail)
    else:
        step = Step(now, "pending", context.channel, reason=reason, detail=detail, until=moment)
    after = msgspec.structs.replace(
        remembered(delivery, step),
        state="pending",
        reason=reason,
        channel=context.notification.channels[channel],
        parts=() if is_other else delivery.parts,
        trying_us=0 if is_other else delivery.trying_us,
        claim=None,
        turn=turn,
        next_try=moment,
        changed=now,
    )
    return Transition(after, job, moment)


def with_next_attempt(transition: Transition) -> Transition:
    """The same transition under the number of the turn after: another schedule has the id of this one."""
    assert transition.job is not None, "only turns have numbers"
    turn = transition.job.attempt + 1
    return msgspec.structs.replace(
        transition,
        delivery=msgspec.structs.replace(transition.delivery, turn=turn),
        job=msgspec.structs.replace(transition.job, attempt=turn),
    )


def unschedulable(context: DeliveryContext, transition: Transition, outcome: Outcome, now: int) -> Transition:
    """The end of a delivery whose next turn the timeline does not accept."""
    reason = f"not_scheduled: {outcome.reason or outcome.outcome}"[:REASON_CHARS_MAX]
    state: State = "sent" if transition.delivery.has_arrived else "failed"
    end = _end(context, transition.delivery, state, reason, now)
    return msgspec.structs.replace(end, accepted=transition.accepted, dead=transition.dead)


def _end(context: DeliveryContext, delivery: Delivery, state: State, reason: str, now: int) -> Transition:
    last = delivery.attempts[-1] if delivery.attempts else None
    is_sent = state == "sent" and last is not None
    after = msgspec.structs.replace(
        delivery,
        state=state,
        reason=reason,
        claim=None,
        next_try=None,
        turn=max(delivery.turn, context.job.attempt),
        changed=now,
        sent=now if is_sent else delivery.sent,
        provider=last.provider if is_sent and last is not None else delivery.provider,
        provider_id=last.provider_id if is_sent and last is not None else delivery.provider_id,
    )
    letter = jobs.dead_letter(context.tenant, context.job, after, now) if state in _DEAD else None
    return Transition(after, letter=letter)


def _ended(delivery: Delivery, answers: Sequence[Answer], now: int) -> Delivery:
    """The delivery with the answers to its attempt, which does not count if our settings were at fault in all."""
    verdicts = [answer.verdict for answer in answers]
    refusals = [
        Step(now, each.verdict.reason, delivery.channel, each.provider, detail=_brief(each.verdict.detail))
        for each in answers
        if isinstance(each.verdict, Broken)
    ]
    if len(refusals) == len(answers):
        return remembered(msgspec.structs.replace(delivery, attempts=delivery.attempts[:-1]), *refusals)
    provider_id = next((verdict.id or None for verdict in verdicts if isinstance(verdict, Accepted)), None)
    failure = next((verdict for verdict in verdicts if not isinstance(verdict, Accepted)), None)
    attempt = msgspec.structs.replace(
        delivery.attempts[-1],
        ended=now,
        outcome="accepted" if failure is None else failure.reason,
        detail="" if failure is None else _brief(failure.detail),
        provider_id=provider_id,
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
