"""Every benchmark runs on tiny sizes and prints its result in the documented format."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.__main__ import LEFT_OUT, NAMES
from bench.report import Report
from tests.servers.downloads import Missing
from tests.servers.fixtures import leave_out
from tidings.testing import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 240


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("intake", "callers_ids_full"),
        ("http_batch", "http_batch"),
        ("http_single", "p99_ms"),
        ("burst", "first_ms"),
        ("recurring_burst", "recurring"),
        ("recurrence", "p99_us"),
        ("parse", "rrule"),
        pytest.param("lateness", "sse_2000_p99_ms", marks=pytest.mark.bench),
        pytest.param("backlog", "memory_peak_mb", marks=pytest.mark.bench),
        pytest.param("tenants", "beside_high_p99_ms", marks=pytest.mark.bench),
        pytest.param("stuck_readers", "memory_mb", marks=pytest.mark.bench),
        pytest.param("kafka_intake", "rows_a_commit", marks=pytest.mark.bench),
        pytest.param("kafka_burst", "burst_committed", marks=pytest.mark.bench),
        pytest.param("kafka_lateness", "late_2000_p99_ms", marks=pytest.mark.bench),
        pytest.param("kafka_backlog", "late_p99_ms", marks=pytest.mark.bench),
        pytest.param("kafka_outage", "normal_s", marks=pytest.mark.bench),
        pytest.param("pg_intake", "callers_ids_full", marks=pytest.mark.bench),
        pytest.param("pg_burst", "two_nodes", marks=pytest.mark.bench),
        pytest.param("pg_lateness", "full_2000_p99_ms", marks=pytest.mark.bench),
        pytest.param("pg_churn", "size_mb", marks=pytest.mark.bench),
        ("render", "render_with_filters"),
        pytest.param("deliver_webhook", "deliver_webhook", marks=pytest.mark.bench),
        pytest.param("deliver_smtp", "deliver_smtp", marks=pytest.mark.bench),
        pytest.param("deliver_latency", "p99_ms_500", marks=pytest.mark.bench),
        pytest.param("deliver_in_app", "deliver_in_app", marks=pytest.mark.bench),
        pytest.param("accept", "ndjson", marks=pytest.mark.bench),
        pytest.param("migration", "postgres_open_s", marks=pytest.mark.bench),
        pytest.param("deliver_priority", "beside_low_p99_ms", marks=pytest.mark.bench),
        pytest.param("deliver_scale_out", "cpu_us_two", marks=pytest.mark.bench),
        pytest.param("notification_path", "files", marks=pytest.mark.bench),
        pytest.param("users", "users", marks=pytest.mark.bench),
        pytest.param("tables", "sqlite_claim", marks=pytest.mark.bench),
        pytest.param("takeover", "killed_s_longest", marks=pytest.mark.bench),
        pytest.param("fleet_kafka", "two_nodes", marks=pytest.mark.bench),
        pytest.param("peers", "tidings_burst", marks=pytest.mark.bench),
    ],
)
def test_a_benchmark_runs(name: str, figure: str) -> None:
    command = [sys.executable, "-m", "bench", name, "--json", "--rounds", "1", "--scale", "0.005"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    if done.returncode == LEFT_OUT:
        leave_out(Missing(done.stderr.decode()))
    assert done.returncode == 0, done.stderr.decode()
    report = msgspec.json.decode(done.stdout, type=Report)
    assert (report.name, report.rounds) == (name, 1)
    assert report.median[figure] >= 0
    assert report.median.keys() == report.spread.keys()
    assert not any(report.median.get(fault) for fault in ("lost", "twice", "early"))


@pytest.mark.slow
def test_an_unknown_benchmark_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "bench", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert b"there is no benchmark 'nothing'" in done.stderr
    assert all(f"\n  {name} ".encode() in done.stderr for name in NAMES)
    assert done.stdout == b""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("bench",), ("tidings", "bench")])
def test_without_a_name_they_are_listed(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()[1:-1]
    first = [line for line in lines if not line.startswith("    ")]  # descriptions wrap
    assert [line.split()[0] for line in first] == list(NAMES)
    assert all(len(line.split()) > 3 for line in first)  # each says what it measures
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_a_name_and_all_of_them_exclude_each_other() -> None:
    command = [sys.executable, "-m", "tidings", "bench", "--all", "burst"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert b"not both" in done.stderr


def _files_in(folder: Path) -> list[Path]:
    """The files of benchmarks; `tempfile` may leave the file by which it tries a folder if it is stopped just then."""
    return [path for data in folder.glob("tidings-*") for path in data.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", [("bench", "intake"), ("tidings", "bench", "--all")])
async def test_a_run_that_is_stopped_removes_its_data(
    command: tuple[str, ...], number: signal.Signals, tmp_path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: _files_in(tmp_path), 30)
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), 30) == 128 + number
    finally:
        if process.returncode is None:
            process.kill()
    assert _files_in(tmp_path) == []


@pytest.mark.slow
def test_without_java_a_benchmark_of_kafka_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "kafka_burst", "--json"]
    without = os.environ | {"JAVA_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=without, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == LEFT_OUT
    assert done.stdout == b""
    assert b"kafka_burst: skipped" in done.stderr
    assert b"install Java" in done.stderr
