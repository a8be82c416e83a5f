"""
How a connection of our own is secured: TLS by Python's `ssl`, then SASL by a user's name and password.

What goes to and fro is without any input or output: a generator yields what is to be sent, takes what the broker
answered to it, and ends when it has let us in. Why it is not a library's: docs/decisions/0020-our-own-broker-link.md.
"""

import base64
import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Generator

from fluvial.errors import ConfigError, FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.client_properties import require_complete
from fluvial.kafka.tls import tls_context

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS_MAX = 1_000_000

Exchange = Generator[bytes, bytes, None]


class SignInError(FluvialError):
    """A broker is not who it should be, or does not let us in."""


class RejectedError(SignInError):
    """A broker knows no such user, or another password of it."""


def tls_of(cluster: KafkaCluster) -> ssl.SSLContext | None:
    """
    Return what TLS with the brokers of `cluster` is done by, None for plain text.

    Raises ConfigError for what is lacking, and SignInError for certificates and keys that `ssl` cannot read.
    """
    require_complete(cluster.properties)
    if not cluster.protocol.endswith("SSL"):
        return None
    if cluster.properties.get("ssl.keystore.location") is not None:
        raise SignInError("this command reads certificates from PEM files: ssl.certificate.location, ssl.key.location")
    try:
        return tls_context(cluster.properties)
    except ConfigError as error:
        raise SignInError(f"the certificates of the ssl. properties cannot be used: {error}") from error


def tokens(cluster: KafkaCluster) -> Exchange:
    """
    Sign in to the brokers of `cluster` by its name and password.

    Raises SignInError for a mechanism that is not spoken here, and for a broker that does not know the password.
    """
    mechanism, name, password = (
        cluster.properties.get(f"sasl.{each}") or "" for each in ("mechanism", "username", "password")
    )
    if mechanism == "PLAIN":
        yield f"\0{name}\0{password}".encode()
    elif mechanism in _HASHES:
        yield from scram(_HASHES[mechanism], name, password, base64.b64encode(os.urandom(24)).decode())
    else:
        raise SignInError(f"this command signs in by a name and password, not by {mechanism}")


def scram(hash_name: str, name: str, password: str, nonce: str) -> Exchange:
    """The client's part of RFC 5802 and 7677; raises SignInError for an answer that is none."""

    def keyed(key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, hash_name)

    escaped = name.replace("=", "=3D").replace(",", "=2C")
    first = f"n={escaped},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode(errors="replace")
    match = re.fullmatch(r"r=([^,]+),s=([^,]+),i=(\d+)(?:,.*)?", challenge)
    if match is None or not match[1].startswith(nonce) or not 1 <= int(match[3]) <= _ITERATIONS_MAX:
        raise SignInError("the broker's answer is none of a SCRAM exchange")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(match[2]), int(match[3]))
    final = f"c=biws,r={match[1]}"
    message = f"{first},{challenge},{final}".encode()
    client_key = keyed(salted, b"Client Key")
    signed = keyed(hashlib.new(hash_name, client_key).digest(), message)
    proof = bytes(a ^ b for a, b in zip(client_key, signed, strict=True))
    signature = base64.b64encode(keyed(keyed(salted, b"Server Key"), message))
    verifier = yield f"{final},p={base64.b64encode(proof).decode()}".encode()
    if not hmac.compare_digest(verifier.split(b",")[0], b"v=" + signature):
        raise SignInError("the broker does not know our password: it is not who it should be")
