"""Errors say what to install, and downloads happen once."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import downloads, foreign, java
from tests.servers.downloads import Missing, fetched, run_fetch
from tests.servers.fixtures import leave_out


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(downloads, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def bare(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with nothing installed but what the test puts into this folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java.java.cache_clear()
    yield programs
    java.java.cache_clear()


def install(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_java_the_error_says_what_to_install(bare: Path) -> None:
    with pytest.raises(Missing, match="Java is not there: install Java 17"):
        java.java()


def test_an_old_java_has_its_own_error(bare: Path) -> None:
    install(bare, "java", """echo 'openjdk version "11.0.2" 2019-01-15' >&2""")
    with pytest.raises(Missing, match="too old: install Java 17"):
        java.java()


def test_a_java_that_does_not_run_does_not_count(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/home")
    with pytest.raises(Missing, match="/no/such/home/bin/java does not run: install Java 17"):
        java.java()


def test_without_maven_the_error_says_what_to_install(bare: Path) -> None:
    with pytest.raises(Missing, match="mvn is not there: install Maven"):
        java.jars()


def test_the_error_for_missing_jars_quotes_maven(bare: Path) -> None:
    install(bare, "mvn", "echo no network here; exit 1")
    with pytest.raises(Missing, match=r"jars cannot be fetched: .*\. mvn says:\nno network here"):
        java.jars()


def test_without_kcat_or_node_the_error_says_what_to_install(bare: Path) -> None:
    with pytest.raises(Missing, match="kcat is not there: install it"):
        foreign.kcat()
    with pytest.raises(Missing, match=r"node is not there: install Node\.js"):
        foreign.kafkajs()


def test_only_ci_requires_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install it"):
        leave_out(Missing("install it"))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="install it"):
        leave_out(Missing("install it"))


def test_concurrent_downloads_fetch_once(cache: Path) -> None:
    calls = []
    both = threading.Barrier(2)

    def fetch(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("content")

    def get() -> None:
        both.wait()
        assert (fetched("thing", b"1", fetch) / "file").read_text() == "content"

    threads = [threading.Thread(target=get) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_an_incomplete_download_is_discarded(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        run_fetch(["false"], folder, "it cannot be fetched")

    with pytest.raises(Missing, match="it cannot be fetched"):
        fetched("thing", b"1", fail)
    made = fetched("thing", b"1", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_a_changed_descriptor_is_fetched_again(cache: Path) -> None:
    first, second = (fetched("thing", pin, lambda folder: None) for pin in (b"1", b"2"))
    assert first != second
