"""A schedule as its resource shows it: what stands in the store, and what only other things of the tenant tell."""

from tidings.domain.revising import calendar_of
from tidings.domain.schedule import Schedule
from tidings.engine import Engine
from tidings.wires.answers import Document, schedule_document


async def document_of(engine: Engine, tenant: str, found: Schedule) -> Document:
    """The document of one schedule; its ETag is made of the same, so that what was shown can be named."""
    document = schedule_document(found)
    if found.state == "ended":
        events = await engine.history(tenant, found.id)
        reasons = [event.reason for event in events if event.event == "ended" and event.reason is not None]
        document |= {"reason": reasons[-1]} if reasons else {}
    calendar = None if found.when is None else calendar_of(found.when)
    if calendar is not None and await engine.store.calendar(tenant, calendar) is None:
        goes_on = "nothing is excluded by it until one is put there again"
        document["note"] = f"there is no calendar {calendar!r} any more: {goes_on}"
    return document
