"""Metrics from facts, in the text format of Prometheus."""

import asyncio
import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.domain.errors import StoreError
from tidings.domain.facts import Changed, Missed, OwnershipChanged, Refused, Released
from tidings.domain.schedules.command import Cancel, Outcome
from tidings.domain.schedules.lateness import MissedReason
from tidings.observe import metrics as module
from tidings.observe.metrics import BOUNDS_US, LABELS_MAX, Histogram, Metrics, merged
from tidings.ports import Count

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"\})? -?[0-9.]+')


async def lines_of(metrics: Metrics) -> list[str]:
    text = (await metrics.render()).decode()
    assert text.endswith("\n")
    lines = text.splitlines()
    for line in lines:
        assert line.startswith(("# HELP tidings_", "# TYPE tidings_")) or SAMPLE.fullmatch(line), line
    return lines


async def full() -> Count:
    return Count(3, 2, 4096)


async def away() -> Count:
    raise StoreError("away")


async def test_facts_are_counted() -> None:
    metrics = Metrics("1.2.3", full)
    metrics(OwnershipChanged(0, True))
    metrics(Released(0, [400, 900, 70_000_000], frozenset()))
    metrics(Missed(0, {"expired": 2, "superseded": 1}))
    metrics(Missed(0, {"expired": 1}))
    metrics(Changed(0, [Cancel("t", "a")] * 2, [Outcome("a", "cancelled"), Outcome("a", "unknown")]))
    metrics(Refused(0, "t", "topic"))
    lines = await lines_of(metrics)
    for line in (
        "tidings_released_total 3",
        'tidings_missed_total{reason="expired"} 3',
        'tidings_missed_total{reason="superseded"} 1',
        'tidings_commands_total{outcome="cancelled"} 1',
        'tidings_commands_total{outcome="unknown"} 1',
        'tidings_refused_total{field="topic"} 1',
        'tidings_lateness_seconds_bucket{le="0.0005"} 1',
        'tidings_lateness_seconds_bucket{le="0.001"} 2',
        'tidings_lateness_seconds_bucket{le="60"} 2',
        'tidings_lateness_seconds_bucket{le="+Inf"} 3',
        "tidings_lateness_seconds_sum 70.0013",
        "tidings_lateness_seconds_count 3",
        "tidings_pending 3",
        "tidings_due_backlog 2",
        "tidings_store_bytes 4096",
        "tidings_owner 1",
        "tidings_up 1",
        'tidings_build_info{version="1.2.3"} 1',
        "# TYPE tidings_lateness_seconds histogram",
    ):
        assert line in lines, line


async def test_all_missed_reasons_are_shown_from_the_start() -> None:
    lines = await lines_of(Metrics("1"))
    missed = [line for line in lines if line.startswith("tidings_missed_total")]
    assert missed == [f'tidings_missed_total{{reason="{reason}"}} 0' for reason in sorted(get_args(MissedReason))]


async def test_a_store_that_does_not_answer_is_not_up() -> None:
    lines = await lines_of(Metrics("1", away))
    assert "tidings_up 0" in lines
    assert not any(line.startswith("tidings_pending") for line in lines)
    assert "tidings_up 1" in await lines_of(Metrics("1"))


async def test_labels_are_bounded_and_escaped() -> None:
    metrics = Metrics('1"\\\n2')
    for n in range(LABELS_MAX + 50):
        metrics(Refused(0, "t", f"field-{n}"))
    refused = [line for line in await lines_of(metrics) if line.startswith("tidings_refused_total")]
    assert len(refused) == LABELS_MAX + 1
    assert 'tidings_refused_total{field="other"} 50' in refused


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(-1_000, 10**9) | st.sampled_from(BOUNDS_US), max_size=60), max_size=5))
def test_small_and_large_batches_are_counted_the_same(batches: list[list[int]]) -> None:
    histogram = Histogram()
    for batch in batches:
        histogram.add(batch)
    values = [value for batch in batches for value in batch]
    lines = list(histogram.lines("x"))
    counts = [int(line.rsplit(" ", 1)[1]) for line in lines[: len(BOUNDS_US)]]
    assert counts == [sum(value <= bound for value in values) for bound in BOUNDS_US]
    assert lines[-1] == f"x_count {len(values)}"
    assert round(float(lines[-2].split(" ")[1]) * 1_000_000) == sum(values)


async def test_a_store_that_hangs_is_asked_once_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNT_S_MAX", 0.01)
    answer, asked = asyncio.Event(), []

    async def hangs() -> Count:
        asked.append(1)
        await answer.wait()
        return await full()

    metrics = Metrics("1.2.3", hangs)
    for _ in range(3):
        lines = await lines_of(metrics)
        assert "tidings_up 0" in lines
        assert not any(line.startswith("tidings_pending") for line in lines)
    assert len(asked) == 1
    answer.set()
    assert "tidings_pending 3" in await lines_of(metrics)


def test_metrics_of_several_processes_are_one_text() -> None:
    one = (
        '# HELP a_total Some.\n# TYPE a_total counter\na_total{kind="x} 1"} 3\na_total 4\n'
        "# HELP b B.\n# TYPE b gauge\nb 1\n"
    )
    other = (
        "# HELP b B in other words.\n# TYPE b gauge\nb 2\n"
        "# HELP c_total Only here.\n# TYPE c_total counter\nc_total 9\n"
    )
    assert merged({"1": one, "2": other, "3": ""}) == (
        "# HELP a_total Some.\n# TYPE a_total counter\n"
        'a_total{process="1",kind="x} 1"} 3\na_total{process="1"} 4\n'
        '# HELP b B.\n# TYPE b gauge\nb{process="1"} 1\nb{process="2"} 2\n'
        '# HELP c_total Only here.\n# TYPE c_total counter\nc_total{process="2"} 9\n'
    )
