"""Java, and the broker's jars as `pom.xml` names them, fetched by Maven."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.servers.downloads import Missing, fetched, program, run_fetch

POM = Path(__file__).with_name("pom.xml")
JAVA_MIN = 17
JAVA_ADVICE = "install Java 17 or newer (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME"
MAVEN_ADVICE = "install Maven (Debian, Ubuntu: maven); it fetches Kafka's jars once"
JARS_ADVICE = "Kafka's jars cannot be fetched: Maven must reach its repository once, see tests/servers/pom.xml"


@cache
def kafka_version() -> str:
    """The version that is pinned."""
    found = re.search(r"<kafka.version>(.+?)</kafka.version>", POM.read_text("utf-8"))
    assert found is not None
    return found[1]


@cache
def java() -> str:
    """The path of a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        raise Missing(f"Java is not there: {JAVA_ADVICE}")
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(f"{path} does not run: {JAVA_ADVICE}") from error
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_MIN:
        raise Missing(f"{path} is too old: {JAVA_ADVICE}")
    return path


def jars() -> Path:
    """The folder of the broker's jars; half a minute when they are fetched, nothing after that."""
    return fetched(f"kafka/{kafka_version()}", POM.read_bytes(), _fetch_jars)


def _fetch_jars(folder: Path) -> None:
    maven = [program("mvn", MAVEN_ADVICE), "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM)]
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    run_fetch([*maven, *goal], folder, JARS_ADVICE)
    if not any(folder.glob("kafka_*.jar")):
        raise Missing(JARS_ADVICE)
