"""
The users that a cluster begins with, so that somebody can sign in to make the others (KIP-900).

They stand in a file that only the first start reads something from, a line each, as Kafka's `--add-scram` has them:

    SCRAM-SHA-512=[name=admin,password=secret,iterations=8192]

`salt` and `saltedpassword`, both in base64, may stand in the place of `password`.
"""

import base64
import binascii
import hashlib
import re
import secrets
from pathlib import Path

from log_broker.core.cluster.access_changes import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, derived
from log_broker.core.cluster.access_image import credential_record
from log_broker.core.cluster.records import UserScramCredentialRecord
from log_broker.core.security.credentials import ScramMechanism
from log_broker.errors import BrokerError, ErrorCode

FIRST_USERS = "fluvial.first.users"
_LINE = re.compile(r"(?P<mechanism>SCRAM-SHA-(?:256|512))=\[(?P<fields>.*)\]")
_FIELDS = frozenset({"name", "password", "salt", "saltedpassword", "iterations"})


def first_users(path: str) -> list[UserScramCredentialRecord]:
    """Return what is kept of the passwords in a file, none for an empty path; raises BrokerError(INVALID_CONFIG)."""
    if not path:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f"{path} cannot be read: {error}") from None
    kept = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    records = [_record(f"{path}:{number}", line) for number, line in kept if line and not line.startswith("#")]
    if len({(record.name, record.mechanism) for record in records}) < len(records):
        raise _wrong(f"{path}: a user stands there twice with the same mechanism")
    return records


def _record(place: str, line: str) -> UserScramCredentialRecord:
    """No message has the line, for the password is in it."""
    found = _LINE.fullmatch(line)
    pairs = [field.partition("=") for field in found["fields"].split(",")] if found is not None else []
    fields = {name.strip(): text for name, _, text in pairs}
    has_secret = ("password" in fields) != ("saltedpassword" in fields)
    if found is None or not fields.get("name") or not has_secret or not fields.keys() <= _FIELDS:
        raise _wrong(f"{place}: write SCRAM-SHA-512=[name=NAME,password=PASSWORD] or SCRAM-SHA-256=[…]")
    mechanism = ScramMechanism(found["mechanism"])
    try:
        iterations = int(fields.get("iterations", ITERATIONS_MIN))
        salt = base64.b64decode(fields["salt"], validate=True) if "salt" in fields else secrets.token_bytes(32)
        salted = base64.b64decode(fields.get("saltedpassword", ""), validate=True)
    except (ValueError, binascii.Error):
        raise _wrong(f"{place}: iterations is a number, salt and saltedpassword are base64") from None
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise _wrong(f"{place}: iterations must lie in {ITERATIONS_MIN} … {ITERATIONS_MAX}")
    if "password" in fields:
        salted = hashlib.pbkdf2_hmac(HASHES[mechanism], fields["password"].encode(), salt, iterations)
    elif "salt" not in fields or not salted:
        raise _wrong(f"{place}: a saltedpassword needs the salt that it was made with")
    credential = derived(mechanism, salt=salt, salted_password=salted, iterations=iterations)
    return credential_record(fields["name"], mechanism, credential)


def _wrong(why: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"{FIRST_USERS}: {why}")
