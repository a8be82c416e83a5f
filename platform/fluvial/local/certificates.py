"""
A certificate authority of a machine's own, as PEM; its key is nowhere but in memory.

Needs the package `cryptography`, so it is imported where certificates are made.
"""

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PEM = serialization.Encoding.PEM
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def common_name(name: str, country: str = "") -> x509.Name:
    """The subject of a certificate, `CN=name` or `CN=name,C=country`."""
    whose = [x509.NameAttribute(NameOID.COUNTRY_NAME, country)] if country else []
    return x509.Name([*whose, x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Signs certificates for so many days; `certificate` is its own."""

    def __init__(self, name: str, days: int) -> None:
        self._name = common_name(name)
        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._signed(self._name, self._key, x509.BasicConstraints(True, 0), _SIGNS)

    def issue(self, subject: x509.Name, hosts: Sequence[str] = LOOPBACK, password: str = "") -> tuple[bytes, bytes]:
        """Return the certificate of a new key at these names and addresses, and the key, by PKCS 8."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        encryption: serialization.KeySerializationEncryption = (
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        )
        return self._signed(subject, key, names), key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, encryption)

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *own: x509.ExtensionType) -> bytes:
        # Which key signed and which is signed: from Python 3.13 on a chain without them is refused (RFC 5280, 4.2.1).
        keys = (
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=self._days))
        )
        for each in (*own, *keys):
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints | x509.KeyUsage))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(_PEM)


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
