"""Authentication and TLS: the settings of the broker and its clients."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.servers.downloads import program
from tests.servers.ports import HOST

OPENSSL_ADVICE = "install openssl (Debian, Ubuntu: openssl)"
MODULES = {
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}


@dataclass(frozen=True, slots=True)
class Login:
    """The user whom a broker knows, by SCRAM-SHA-256 and by PLAIN."""

    user: str = "tidings"
    password: str = "a secret of the tests"

    def server(self, listeners: tuple[str, ...]) -> dict[str, str]:
        """The broker's properties for these listeners; it talks to itself as the same user."""
        properties = {
            "sasl.enabled.mechanisms": ",".join(MODULES),
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        }
        own = f'username="{self.user}" password="{self.password}"'
        for listener in listeners:
            for mechanism, module in MODULES.items():
                known = f' user_{self.user}="{self.password}"' if mechanism == "PLAIN" else ""
                name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
                properties[name] = f"{module} required {own}{known};"
        return properties

    def scram(self) -> str:
        """How `StorageTool format --add-scram` wants it."""
        return f"SCRAM-SHA-256=[name={self.user},password={self.password}]"

    def client(self, mechanism: str) -> dict[str, str]:
        """The settings of a librdkafka client."""
        return {"sasl.mechanism": mechanism, "sasl.username": self.user, "sasl.password": self.password}


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate for this machine, signed by itself."""

    certificate: Path
    store: Path

    @classmethod
    def make(cls, folder: Path) -> "Certificate":
        """A new key and its certificate, as PEM files."""
        key, certificate, store = (folder / name for name in ("key.pem", "certificate.pem", "store.pem"))
        subject = ["-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{HOST}"]
        new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        subprocess.run([program("openssl", OPENSSL_ADVICE), *new, *subject, *files], capture_output=True, check=True)
        store.write_bytes(key.read_bytes() + certificate.read_bytes())
        return cls(certificate, store)

    def server(self) -> dict[str, str]:
        """The broker's properties."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificate),
        }

    def client(self) -> dict[str, str]:
        """The settings of a librdkafka client."""
        return {"ssl.ca.location": str(self.certificate)}


@dataclass(frozen=True, slots=True)
class Security:
    """What the listeners require of clients."""

    login: Login | None = None
    certificate: Certificate | None = None

    @property
    def protocol(self) -> str:
        match self.login, self.certificate:
            case None, None:
                return "PLAINTEXT"
            case None, _:
                return "SSL"
            case _, None:
                return "SASL_PLAINTEXT"
            case _:
                return "SASL_SSL"

    def server(self, listeners: tuple[str, ...]) -> dict[str, str]:
        """The broker's properties for these listeners."""
        login = self.login.server(listeners) if self.login else {}
        return login | (self.certificate.server() if self.certificate else {})

    def client(self, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """The settings of a librdkafka client."""
        login = self.login.client(mechanism) if self.login else {}
        return {"security.protocol": self.protocol} | login | (self.certificate.client() if self.certificate else {})
