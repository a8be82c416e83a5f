"""
SCRAM-SHA-256 and SCRAM-SHA-512, both ends (RFC 5802, RFC 7677), without channel binding as Kafka has it.

    client   n,,n=user,r=nonce
    server   r=nonce+more,s=salt,i=iterations
    client   c=biws,r=nonce+more,p=proof
    server   v=signature

A sign-in costs the server a few HMACs; only the client derives keys from the password. A name that nobody has is
answered with a challenge like any other, derived from the name, and refused at the end.
"""

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from log_broker.core.security.credentials import ScramCredential, ScramMechanism
from log_broker.core.security.mechanism import Challenge, SignedIn, SignInError, Step
from log_broker.core.security.principal import Principal
from log_broker.core.security.users import Users

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384
MESSAGE_BYTES_MAX = 4096
NONCE_LENGTH_MAX = 512
NAME_BYTES_MAX = 1024
SALT_BYTES_FAKE = 32

_HASHES = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]"  # without the comma
_CLIENT_FIRST = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authzid>[^,\0]+))?,)(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>{_PRINTABLE}+)"
    r"(?:,[A-Za-z]=[^,\0]+)*)"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproven>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_PRINTABLE}+)(?:,[A-Za-z]=[^,\0]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{{1,9}})(?:,.*)?"
)


def credential_of(password: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism) -> ScramCredential:
    """Return what is kept of a password; takes some milliseconds."""
    return credential_of_salted(salted(password, salt, iterations, mechanism), salt, iterations, mechanism)


def credential_of_salted(key: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism) -> ScramCredential:
    """Return what is kept of a password that was salted already, as AlterUserScramCredentials brings it."""
    name = _HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(key, b"Client Key", name)).digest()
    return ScramCredential(salt, stored, hmac.digest(key, b"Server Key", name), iterations)


def salted(password: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism) -> bytes:
    """Return SaltedPassword of RFC 5802."""
    return hashlib.pbkdf2_hmac(_HASHES[mechanism], password, salt, iterations)


def fake_credential(name: str, mechanism: ScramMechanism, secret: bytes) -> ScramCredential:
    """
    Return what a user whom nobody knows would have, the same at each attempt; no password fits it.

    Nodes that share `secret` answer alike, so that asking two of them tells nothing either.
    """
    digest = _HASHES[mechanism]
    salt = hmac.digest(secret, f"salt {mechanism} {name}".encode(), digest)[:SALT_BYTES_FAKE]
    key = hmac.digest(secret, f"key {mechanism} {name}".encode(), digest)
    return ScramCredential(salt, key, key, ITERATIONS_MIN)


class ScramExchange:
    """The server's end of one sign-in."""

    def __init__(self, mechanism: ScramMechanism, users: Users, *, nonce: str, secret: bytes) -> None:
        """`nonce` is drawn anew for each exchange, `secret` is what challenges for unknown names come from."""
        self._mechanism = mechanism
        self._users = users
        self._own_nonce = nonce
        self._secret = secret
        self._credential: ScramCredential | None = None  # from the first message on
        self._is_known = False
        self._name = ""
        self._header = self._said = ""
        self._client_nonce = self._nonce = ""

    def step(self, data: bytes) -> Step:
        text = _text(data)
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> Step:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise SignInError(f"the first message of {self._mechanism} cannot be read")
        if len(found["nonce"]) > NONCE_LENGTH_MAX:
            raise SignInError("the client's nonce is too long")
        self._name = _unescaped(found["name"])
        if found["authzid"] is not None and _unescaped(found["authzid"]) != self._name:
            raise SignInError("a client asked to act for another user than the one that signs in")
        credential = self._users.scram(self._name, self._mechanism)
        self._is_known = credential is not None
        self._credential = credential or fake_credential(self._name, self._mechanism, self._secret)
        self._header = found["header"]
        self._client_nonce = found["nonce"]
        self._nonce = self._client_nonce + self._own_nonce
        salt = b64encode(self._credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._said = f"{found['bare']},{answer}"
        return Challenge(data=answer.encode())

    def _final(self, text: str, credential: ScramCredential) -> Step:
        found = _CLIENT_FINAL.fullmatch(text)
        if found is None:
            raise SignInError(f"the last message of {self._mechanism} cannot be read")
        if _decoded(found["binding"]) != self._header.encode():
            raise SignInError("the channel binding is not that of the first message")
        # librdkafka before 2.6.1 says its own nonce twice: that too is of this exchange alone, and the proof covers it.
        if found["nonce"] not in (self._nonce, self._client_nonce + self._nonce):
            raise SignInError("the nonce is not that of this exchange")
        digest = _HASHES[self._mechanism]
        message = f"{self._said},{found['unproven']}".encode()
        signature = hmac.digest(credential.stored_key, message, digest)
        proof = _decoded(found["proof"])
        if len(proof) != len(signature):
            raise SignInError("the proof has the wrong length")
        key = hashlib.new(digest, _xored(proof, signature)).digest()
        is_right = hmac.compare_digest(key, credential.stored_key)
        if not (is_right and self._is_known):
            raise SignInError(f"{'wrong password of' if self._is_known else 'unknown'} user {self._name!r}")
        answer = b"v=" + b64encode(hmac.digest(credential.server_key, message, digest))
        return SignedIn(principal=Principal(self._name), data=answer)


class ScramClient:
    """The client's end, by which one node signs in to another; it demands the proof that the server knows the user."""

    def __init__(self, mechanism: ScramMechanism, name: str, password: bytes, *, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return what is sent first."""
        return f"n,,{self._bare}".encode()

    def final(self, data: bytes) -> bytes:
        """Return what answers the server's challenge, which takes milliseconds; raises SignInError."""
        text = _text(data)
        found = _SERVER_FIRST.fullmatch(text)
        if found is None:
            raise SignInError("the challenge cannot be read")
        iterations = int(found["iterations"])
        if not found["nonce"].startswith(self._nonce) or len(found["nonce"]) == len(self._nonce):
            raise SignInError("the challenge is not for this exchange")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SignInError(f"{iterations} iterations are not between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
        digest = _HASHES[self._mechanism]
        key = salted(self._password, _decoded(found["salt"]), iterations, self._mechanism)
        client_key = hmac.digest(key, b"Client Key", digest)
        unproven = f"c=biws,r={found['nonce']}"
        message = f"{self._bare},{text},{unproven}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
        self._signature = hmac.digest(hmac.digest(key, b"Server Key", digest), message, digest)
        return f"{unproven},p={b64encode(_xored(client_key, signature)).decode()}".encode()

    def verify(self, data: bytes) -> None:
        """Raise SignInError unless the server has shown that it knows the user too."""
        found = data[2:] if data.startswith(b"v=") else b""
        if not hmac.compare_digest(found, b64encode(self._signature)):
            raise SignInError("the server does not know the user that it lets in")


def _text(data: bytes) -> str:
    if len(data) > MESSAGE_BYTES_MAX:
        raise SignInError(f"a message of {len(data)} bytes, and at most {MESSAGE_BYTES_MAX} are read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SignInError("a message is not UTF-8") from error


def _unescaped(name: str) -> str:
    if re.search(r"=(?!2C|3D)", name) or len(name.encode()) > NAME_BYTES_MAX:
        raise SignInError("the user's name cannot be read")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except Base64Error as error:
        raise SignInError("a value is not base64") from error


def _xored(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
