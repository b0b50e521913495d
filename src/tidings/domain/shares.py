"""Fair shares of a batch: by priority, and equally among the streams (tenants) of one priority."""

from collections.abc import Container, Sequence

from tidings.domain.command import Priority

WEIGHTS = {Priority.HIGH: 60, Priority.NORMAL: 30, Priority.LOW: 10}


def deal(streams: Sequence[tuple[int, int]], rows: int) -> dict[int, int]:
    """How many rows of a batch each stream may take; streams are pairs (stream, priority). Each gets at least one.

    The shares of absent priorities go to the others. Example: a batch of 100 rows with one stream of high and two of
    normal priority. The weights are 60 and 30, so high gets 100 * 60 // 90 = 66 rows, and normal 33, 16 for each
    stream.
    """
    members: dict[int, list[int]] = {}
    for stream, priority in streams:
        members.setdefault(priority, []).append(stream)
    total = sum(WEIGHTS[Priority(priority)] for priority in members)
    quotas: dict[int, int] = {}
    for priority, names in members.items():
        share = rows * WEIGHTS[Priority(priority)] // total
        quotas.update(dict.fromkeys(names, max(1, share // len(names))))
    return quotas


def deal_bounded(streams: Sequence[tuple[int, int]], rows: int, narrow: Container[int], room: int) -> dict[int, int]:
    """The same if the `narrow` streams (those to Kafka) together may take at most `room` rows, the room in the outbox.

    The room is shared among them by the same weights; if there is none, they get nothing.
    """
    quotas = deal(streams, rows)
    through = [(stream, priority) for stream, priority in streams if stream in narrow]
    if through and room < rows:
        for stream, share in deal(through, room).items():
            quotas[stream] = min(quotas[stream], share, room)
    return quotas
