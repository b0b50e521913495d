"""Fair shares of a batch: by priority, and inside a priority dealt by tenant."""

from collections.abc import Container, Sequence

from tidings.domain.command import Priority

WEIGHTS = {Priority.HIGH: 60, Priority.NORMAL: 30, Priority.LOW: 10}


def deal(streams: Sequence[tuple[int, int]], rows: int) -> dict[int, int]:
    """How many rows each stream, given as (stream, priority), may take of a batch; everyone gets at least one.

    The shares of priorities that are not there pass on to those that are.
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
    """The same where some streams go through a narrow place, which has room for so many rows of theirs together.

    What is there is dealt among them by the same shares; without any they get nothing.
    """
    quotas = deal(streams, rows)
    through = [(stream, priority) for stream, priority in streams if stream in narrow]
    if through and room < rows:
        for stream, share in deal(through, room).items():
            quotas[stream] = min(quotas[stream], share, room)
    return quotas
