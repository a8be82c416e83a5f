"""
PLAIN (RFC 4616): the password itself, checked against what SCRAM keeps of it, so that each user exists once.

Deriving keys from a password takes milliseconds. What was right is remembered as a digest under a key that only this
process has, so that a client that comes again costs one HMAC; a changed password makes the digest worthless.
"""

import hmac
from collections import OrderedDict

from log_broker.core.security.credentials import ScramCredential, ScramMechanism
from log_broker.core.security.mechanism import Check, SignedIn, SignInError, Step
from log_broker.core.security.principal import Principal
from log_broker.core.security.scram import credential_of, fake_credential
from log_broker.core.security.users import Users

PLAIN = "PLAIN"
MESSAGE_BYTES_MAX = 8192
REMEMBERED_MAX = 10_000


class PlainPasswords:
    """Checks passwords; one for a node."""

    def __init__(self, users: Users, *, key: bytes, secret: bytes) -> None:
        """`key` is of this process alone, `secret` is what credentials of unknown names come from."""
        self._users = users
        self._key = key
        self._secret = secret
        self._right: OrderedDict[str, bytes] = OrderedDict()  # name -> digest of the password that was right

    def knows(self, name: str) -> bool:
        """Whether there is a user of this name."""
        return any(self._users.scram(name, mechanism) is not None for mechanism in ScramMechanism)

    def check(self, name: str, password: bytes) -> SignedIn | Check:
        """Return who that is, or the work that tells, which raises SignInError."""
        kept = {
            mechanism: credential
            for mechanism in ScramMechanism
            if (credential := self._users.scram(name, mechanism)) is not None
        }
        remembered = self._right.get(name)
        for credential in kept.values():
            if remembered is not None and hmac.compare_digest(remembered, self._digest(credential, password)):
                return SignedIn(principal=Principal(name))
        return Check(lambda: self._derive(name, password, kept))

    def _derive(self, name: str, password: bytes, kept: dict[ScramMechanism, ScramCredential]) -> SignedIn:
        """In a thread, as long for a name that nobody has as for another."""
        fake = ScramMechanism.SHA_512
        for mechanism, credential in (kept or {fake: fake_credential(name, fake, self._secret)}).items():
            derived = credential_of(password, credential.salt, credential.iterations, mechanism)
            if hmac.compare_digest(derived.stored_key, credential.stored_key) and kept:
                self._remember(name, self._digest(credential, password))
                return SignedIn(principal=Principal(name))
        raise SignInError(f"{'wrong password of' if kept else 'unknown'} user {name!r}")

    def _remember(self, name: str, digest: bytes) -> None:
        self._right[name] = digest
        self._right.move_to_end(name)
        while len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)

    def _digest(self, credential: ScramCredential, password: bytes) -> bytes:
        return hmac.digest(self._key, credential.salt + credential.stored_key + password, "sha256")


class PlainExchange:
    """The server's end of one sign-in: one message, `authorize as NUL user NUL password`."""

    def __init__(self, passwords: PlainPasswords) -> None:
        self._passwords = passwords

    def step(self, data: bytes) -> Step:
        if len(data) > MESSAGE_BYTES_MAX:
            raise SignInError(f"a message of {len(data)} bytes, and at most {MESSAGE_BYTES_MAX} are read")
        parts = data.split(b"\0")
        if len(parts) != 3:
            raise SignInError("the message of PLAIN cannot be read")
        try:
            acts_for, name = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError as error:
            raise SignInError("the message of PLAIN is not UTF-8") from error
        if not name or not parts[2]:
            raise SignInError("PLAIN without a user or a password")
        if acts_for not in {"", name}:
            raise SignInError("a client asked to act for another user than the one that signs in")
        return self._passwords.check(name, parts[2])
