"""Medians, spreads, ratios, and how they are shown."""

from pathlib import Path

import msgspec
import pytest

from bench import report
from bench.flows import Flow, lateness
from bench.options import Options
from bench.report import Bar, Report, save, table, to_json
from bench.rounds import Rounds, divided

BARS = (Bar("rate", "ratio", ">=", 0.45), Bar("late_ms", "median", "<=", 20), Bar("other", "ratio", ">", 1))


def measured() -> Report:
    rounds = Rounds("sample")
    for rate, limit in ((90, 200), (110, 200), (100, 250)):
        rounds.add({"rate": rate}, {"rate": limit}, divided({"rate": rate}, {"rate": limit}))
    rounds.put({"late_ms": 21.5})
    return rounds.report()


def test_medians_are_over_rounds_and_ratios_are_taken_in_each() -> None:
    assert measured() == Report(
        "sample", 3, {"rate": 100, "late_ms": 21.5}, {"rate": 0.2, "late_ms": 0}, {"rate": 200}, {"rate": 0.45}
    )


def test_json_is_one_object_of_the_agreed_shape() -> None:
    document = msgspec.json.decode(to_json(measured()))
    assert list(document) == ["name", "rounds", "median", "spread", "limit", "ratio"]


def test_targets_say_whether_they_are_reached() -> None:
    assert [bar.reached(measured()) for bar in BARS] == [True, False, None]
    shown = table(measured(), BARS, "some work")
    assert "ratio >= 0.45  yes" in shown
    assert "<= 20          NO" in shown


def test_saved_results_contain_the_command_and_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    saved = msgspec.json.decode(save(measured(), BARS, "sample").read_bytes())
    assert saved["reached"] == {"rate, ratio": True, "late_ms, median": False}
    assert {"command", "python", "sqlite", "cores"} <= set(saved)


def test_sizes_are_scaled() -> None:
    small = Options(scale=0.01)
    assert small.rows(100_000, 1_000) == 1_000
    assert small.rows(10, 1_000) == 1_000
    assert small.backlog(3_000_000) == 30_000
    assert Options(pending=5).backlog(3_000_000) == 5
    assert Options().seconds(60) == 60


def test_a_flow_keeps_its_rate_and_is_sent_ahead() -> None:
    flow = Flow(500, 10_000_000, 2.0, "t")
    steps = list(flow.steps())
    assert sum(len(moments) for _, moments in steps) == flow.count == 1_000
    assert all(at < min(moments) and max(moments) < flow.end for at, moments in steps)


def test_early_records_are_counted() -> None:
    assert lateness([1_000, 2_000, -1]).early == 1
    assert lateness([1_000] * 100).p99_ms == 1
