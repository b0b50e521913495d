"""Names that no store can hold are refused before the store is asked, with the same words over every store."""

from collections.abc import Awaitable, Callable

import pytest

from tests.contract.factories import ACME, NOW
from tidings.domain.errors import Invalid
from tidings.domain.schedules.schedule import Query
from tidings.engine import Engine
from tidings.ports import Store
from tidings.testing import SimulatedClock

BAD = ("nul\0inside", "half \ud800 pair")
READS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "id": lambda engine, bad: engine.find(ACME, bad),
    "id of a history": lambda engine, bad: engine.history(ACME, bad),
    "prefix": lambda engine, bad: engine.page(ACME, Query(prefix=bad)),
    "label": lambda engine, bad: engine.page(ACME, Query(label=("name", bad))),
    "topic of a list": lambda engine, bad: engine.page(ACME, Query(topic=bad)),
    "topic": lambda engine, bad: engine.read(ACME, bad, None, 10),
    "group": lambda engine, bad: engine._groups.join(ACME, "greetings", bad),
    "topic of a group": lambda engine, bad: engine._groups.join(ACME, bad, "workers"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("read", READS)
async def test_a_read_under_a_name_that_cannot_be_stored(store: Store, read: str, name: str) -> None:
    engine = Engine(store, SimulatedClock(NOW))
    with pytest.raises(Invalid, match="holds a NUL character or half of a surrogate pair") as error:
        await READS[read](engine, name)
    assert error.value.field == read.split(maxsplit=1)[0]
