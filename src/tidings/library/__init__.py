"""The library: Tidings inside a Python program.

async with tidings.open("tidings.db") as t:
    await t.schedule("greetings", {"hello": "world"}, at="+5s")
    async for record in t.follow("greetings"):
        print(record.text, record.late_ms)
"""

from tidings.library.embedded import Tidings, open
from tidings.library.schedule_values import Event, Options, Outcome, Record, Schedule, make_request

__all__ = ["Event", "Options", "Outcome", "Record", "Schedule", "Tidings", "make_request", "open"]
