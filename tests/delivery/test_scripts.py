"""The same random scripts end in the same states on every store."""

import pytest

from tests.delivery.script_stage import ScriptStage
from tests.delivery.scripts import Script
from tidings.ports import Store
from tidings.timeline.memory import MemoryStore

SCRIPTS = 12


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jitter: all stores retry at the same time."""
    monkeypatch.setattr("random.random", lambda: 0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("half")
@pytest.mark.parametrize("seed", range(SCRIPTS))
async def test_a_script_ends_as_in_memory(store: Store, seed: int) -> None:
    script = Script(seed, any_order=True)
    expected = await ScriptStage(MemoryStore(), script).run(script)
    assert await ScriptStage(store, script).run(script) == expected
    assert expected["deliveries"] or not expected["notifications"]
