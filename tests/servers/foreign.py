"""Kafka clients of other languages: kafkajs from npm, and kcat."""

import shutil
from pathlib import Path

from tests.servers.downloads import Missing, fetched, program, run_fetch

KAFKAJS = Path(__file__).with_name("kafkajs")
PINS = ("package.json", "package-lock.json")
NODE_ADVICE = "install Node.js with npm (Debian, Ubuntu: nodejs, npm)"
KAFKAJS_ADVICE = "kafkajs cannot be fetched: npm must reach its registry once, see tests/servers/kafkajs"
KCAT_ADVICE = "install it (Debian, Ubuntu: kcat; macOS: brew install kcat)"


def node() -> str:
    """The path of Node.js."""
    return program("node", NODE_ADVICE)


def kafkajs() -> Path:
    """A folder with `node_modules`; run a script with it as `NODE_PATH=<folder>/node_modules`."""
    node()
    return fetched("kafkajs", b"".join((KAFKAJS / name).read_bytes() for name in PINS), _fetch_kafkajs)


def _fetch_kafkajs(folder: Path) -> None:
    for name in PINS:
        shutil.copy(KAFKAJS / name, folder)
    npm = [program("npm", NODE_ADVICE), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    run_fetch(npm, folder, KAFKAJS_ADVICE)


def kcat() -> str:
    """The path of kcat, which older systems call kafkacat."""
    path = shutil.which("kcat") or shutil.which("kafkacat")
    if path is None:
        raise Missing(f"kcat is not there: {KCAT_ADVICE}")
    return path
