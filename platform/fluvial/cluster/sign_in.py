"""
How a connection of our own is secured: TLS by Python's `ssl`, then SASL by a user's name and password.

`Scram` is the client's part of RFC 5802 and 7677 without any input or output; what goes to and fro is in `tokens`.
"""

import base64
import hashlib
import hmac
import os
import re
import ssl
import tempfile
from collections.abc import Generator
from pathlib import Path

from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.client_properties import require_complete
from fluvial.properties import Properties

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MAX = 1_000_000


class SignInError(FluvialError):
    """A broker is not who it should be, or does not let us in."""


def tls_context(cluster: KafkaCluster) -> ssl.SSLContext | None:
    """
    Return what TLS with the brokers of `cluster` is done by, None for plain text.

    Raises ConfigError for what is lacking, and SignInError for certificates and keys that `ssl` cannot read.
    """
    require_complete(cluster.properties)
    if not cluster.protocol.endswith("SSL"):
        return None
    values = cluster.properties.as_dict()
    if "ssl.keystore.location" in values:
        raise SignInError("this command reads certificates from PEM files: ssl.certificate.location, ssl.key.location")
    authority = Path(values.get("ssl.ca.location", "probe")).expanduser()
    try:
        context = ssl.create_default_context(
            cafile=authority if authority.is_file() else None,
            capath=authority if authority.is_dir() else None,
            cadata=values.get("ssl.ca.pem"),
        )
        context.check_hostname = values.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
        if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _show_certificate(context, cluster.properties)
    except OSError as error:
        raise SignInError(
            f"the certificates of the ssl. properties cannot be used: {error.strerror or error}"
        ) from error
    return context


def _show_certificate(context: ssl.SSLContext, properties: Properties) -> None:
    password = properties.get("ssl.key.password") or ""
    location, pem = properties.get("ssl.certificate.location"), properties.get("ssl.certificate.pem")
    if location is not None:
        key = properties.get("ssl.key.location")
        if key is not None:
            context.load_cert_chain(Path(location).expanduser(), Path(key).expanduser(), password)
            return
        pem = Path(location).expanduser().read_text(encoding="ascii")
    if pem is None:
        return
    key_location = properties.get("ssl.key.location")
    key = properties.get("ssl.key.pem") or Path(key_location or "").expanduser().read_text(encoding="ascii")
    # `ssl` reads keys from files alone; this one is gone again before anybody is connected to.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{pem}\n{key}")
        file.flush()
        context.load_cert_chain(file.name, password=password)


def tokens(cluster: KafkaCluster) -> Generator[bytes, bytes, None]:
    """
    Yield what is to be sent and take what the broker answered to it, until it has let us in.

    Raises SignInError for a mechanism that is not spoken here, and for a broker that does not know the password.
    """
    values = cluster.properties.as_dict()
    mechanism, name, password = (
        values["sasl.mechanism"],
        values.get("sasl.username", ""),
        values.get("sasl.password", ""),
    )
    if mechanism == "PLAIN":
        yield f"\0{name}\0{password}".encode()
    elif mechanism in _HASHES:
        exchange = Scram(_HASHES[mechanism], name, password, base64.b64encode(os.urandom(24)).decode())
        answer = yield exchange.first()
        answer = yield exchange.final(answer)
        exchange.check(answer)
    else:
        raise SignInError(f"this command signs in by a name and password, not by {mechanism}")


class Scram:
    """The client's part of a SCRAM exchange with `nonce`; each step raises SignInError for an answer that is none."""

    def __init__(self, hash_name: str, name: str, password: str, nonce: str) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """What begins the exchange."""
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """The proof that we know the password, with the salt and the iterations of the broker's answer."""
        match = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)(?:,.*)?", answer.decode(errors="replace"))
        if match is None or not match[1].startswith(self._nonce) or not 1 <= int(match[3]) <= _ITERATIONS_MAX:
            raise SignInError("the broker's answer is none of a SCRAM exchange")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(match[2]), int(match[3]))
        without_proof = f"c=biws,r={match[1]}"
        message = f"{self._bare},{answer.decode()},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        signed = self._hmac(hashlib.new(self._hash, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signed, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Make sure that the broker knows the password as well."""
        if not hmac.compare_digest(answer.split(b",")[0], b"v=" + base64.b64encode(self._signature)):
            raise SignInError("the broker does not know our password: it is not who it should be")

    def _hmac(self, key: bytes, text: bytes) -> bytes:
        return hmac.new(key, text, self._hash).digest()
