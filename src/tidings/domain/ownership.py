"""Schedules that belong to a notification: which changes may name them, and what to do instead.

The schedule of a notification has the notification's id, and each further attempt has a schedule of its own. Their
message only names the notification. A change that replaced it, or cancelled it without the deliveries behind it, would
leave a notification that stays `pending` for ever. Pause, resume and fire change only when it is released: they are
accepted.
"""

from typing import assert_never

import msgspec

from tidings.domain.command import FINISHED, Add, Cancel, Command, Fire, Pause, Replace, Resume, State
from tidings.domain.message import unpack
from tidings.domain.names import BELONGED, BELONGS
from tidings.domain.notification import TOPICS, Errand

_decode = msgspec.json.Decoder(Errand).decode


def change_refused(command: Command, schedule_id: str, state: State, topic: str, message: bytes | None) -> str | None:
    """Why a command must not change this schedule, None if it may. `message` is packed, None once it is gone."""
    if topic not in TOPICS:
        return None
    if state in FINISHED:
        return _reused(command)
    owner = owner_of(topic, message)
    return None if owner is None else _cut_off(command, schedule_id, owner)


def owner_of(topic: str, message: bytes | None) -> str | None:
    """The id of the notification that a schedule belongs to; None for one that somebody scheduled themselves."""
    if topic not in TOPICS or message is None:
        return None
    try:
        return _decode(unpack(message).value or b"").notification
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _reused(command: Command) -> str | None:
    """Refuse to reuse a finished id: its notification may have deliveries that wait for another attempt."""
    if isinstance(command, Add | Replace) and command.reuse:
        return f"{BELONGED}: use another id"
    return None


def _cut_off(command: Command, schedule_id: str, owner: str) -> str | None:
    belongs = f"{BELONGS} {owner!r}"
    instead = f"DELETE /v1/notifications/{owner} or `tidings notifications cancel {owner}`"
    match command:
        case Add():
            return f"{belongs}: use another id"
        case Replace():
            return f"{belongs}: cancel the notification ({instead}) and send a new one"
        case Cancel():
            return None if command.with_deliveries else f"{belongs}: cancel the notification ({instead})"
        case Pause() | Resume() | Fire():
            if schedule_id == owner:
                return None
            return f"{belongs}, as another attempt to deliver it: cancel the notification ({instead})"
        case _:
            assert_never(command)
