"""A certificate authority of the tests, and the certificate of their servers, as files."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAMES = ("localhost", "hooks.example", "public.example")


@dataclass(frozen=True, slots=True)
class Authority:
    """`ca` is what a client trusts."""

    ca: Path
    server: Path

    @classmethod
    def make(cls, folder: Path) -> "Authority":
        """A new authority, and a certificate for this machine signed by it."""
        root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        hosts = [x509.DNSName(host) for host in NAMES]
        ips = [x509.IPAddress(ip_address(ip)) for ip in ("127.0.0.1", "::1")]
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        key_id = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
        ca = _begun(name, name, root).add_extension(constraint, critical=True).add_extension(key_id, critical=False)
        certificate = (
            _begun(own, name, leaf)
            .add_extension(x509.SubjectAlternativeName([*hosts, *ips]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), critical=False)
        )
        ca_file, server_file = folder / "ca.pem", folder / "server.pem"
        ca_file.write_bytes(ca.sign(root, hashes.SHA256()).public_bytes(Encoding.PEM))
        key = leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        server_file.write_bytes(key + certificate.sign(root, hashes.SHA256()).public_bytes(Encoding.PEM))
        return cls(ca_file, server_file)

    def context(self, *alpn: str) -> ssl.SSLContext:
        """TLS of a server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server)
        if alpn:
            context.set_alpn_protocols(alpn)
        return context


def _begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
    )
