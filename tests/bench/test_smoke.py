"""Every benchmark runs, on tiny sizes, and says its result in the agreed shape."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.report import Report

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 240


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("intake", "callers_ids_full"),
        ("http_batch", "http_batch"),
        ("http_single", "p99_ms"),
        ("burst", "first_ms"),
        pytest.param("lateness", "sse_2000_p99_ms", marks=pytest.mark.slow),
        pytest.param("backlog", "memory_peak_mb", marks=pytest.mark.slow),
        pytest.param("tenants", "beside_high_p99_ms", marks=pytest.mark.slow),
        pytest.param("peers", "tidings_burst", marks=pytest.mark.slow),
    ],
)
def test_a_benchmark_runs(name: str, figure: str) -> None:
    command = [sys.executable, "-m", "bench", name, "--json", "--rounds", "1", "--scale", "0.005"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr.decode()
    report = msgspec.json.decode(done.stdout, type=Report)
    assert (report.name, report.rounds) == (name, 1)
    assert report.median[figure] >= 0
    assert report.median.keys() == report.spread.keys()


def test_an_unknown_benchmark_is_refused_by_name() -> None:
    command = [sys.executable, "-m", "bench", "nothing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert b"nothing" in done.stderr
