"""
What the controller decides about ACLs and users' credentials: records, and an answer for each wish.

Codes and words are Kafka's (AclControlManager, ScramControlManager).
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from log_broker.core.cluster.access_image import MECHANISMS, AccessRecord, acl_record, credential_record
from log_broker.core.cluster.features import METADATA_VERSION, USERS_FROM
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
)
from log_broker.core.security.acls import Acl, AclFilter
from log_broker.core.security.credentials import ScramCredential, ScramMechanism
from log_broker.errors import BrokerError, ErrorCode

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
NAME_LENGTH_MAX = 255  # of users
HASHES = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
_NONE = (ErrorCode.NONE, None)

Refusal = tuple[ErrorCode, str | None]


class Upsertion(NamedTuple):
    """A password of a user, salted by the client; `mechanism` is a number, or what a client took for one."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


class Deletion(NamedTuple):
    """A user's credential that shall not be."""

    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of one filter."""

    refusal: Refusal = _NONE
    acls: Sequence[Acl] = field(default_factory=tuple)


def check_level(image: ClusterImage) -> None:
    """Raise BrokerError(UNSUPPORTED_VERSION) while a node may not be able to read records of users and ACLs."""
    now = image.levels[METADATA_VERSION]
    if now < USERS_FROM:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"users and ACLs can be kept from {METADATA_VERSION} {USERS_FROM} on and the cluster is at {now}: when all"
            " nodes run a release that supports it, raise it by `fluvial cluster features upgrade`",
        )


def create_acls(
    image: ClusterImage, wanted: Sequence[Acl | BrokerError], fresh_id: Callable[[], str]
) -> tuple[list[AccessControlEntryRecord], list[Refusal]]:
    """Decide on new ACLs; one that is there already is granted. What could not be read as an ACL is an error."""
    check_level(image)
    known = set(image.access.acls.values())
    records: list[AccessControlEntryRecord] = []
    answers: list[Refusal] = []
    for acl in wanted:
        try:
            if isinstance(acl, BrokerError):
                raise acl
            acl.check()
        except BrokerError as error:
            answers.append((error.code, str(error)))
            continue
        if acl not in known:
            known.add(acl)
            records.append(acl_record(fresh_id(), acl))
        answers.append(_NONE)
    return records, answers


def delete_acls(
    image: ClusterImage, filters: Sequence[AclFilter | BrokerError]
) -> tuple[list[RemoveAccessControlEntryRecord], list[Deleted]]:
    """Decide on the end of all ACLs that match one of the filters; each filter is answered with all that it matches."""
    gone: dict[str, None] = {}
    answers: list[Deleted] = []
    for each in filters:
        if isinstance(each, BrokerError):
            answers.append(Deleted((each.code, str(each))))
            continue
        matched = {acl_id: acl for acl_id, acl in image.access.acls.items() if each.matches(acl)}
        gone.update(dict.fromkeys(matched))
        answers.append(Deleted(acls=tuple(matched.values())))
    return [RemoveAccessControlEntryRecord(id=acl_id) for acl_id in gone], answers


def alter_credentials(
    image: ClusterImage, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> tuple[list[AccessRecord], dict[str, Refusal]]:
    """Decide on users' credentials; a user who is named twice is refused whole."""
    check_level(image)
    wishes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    times = Counter(wish.name for wish in wishes)
    records: list[AccessRecord] = []
    answers: dict[str, Refusal] = {}
    for wish in wishes:
        try:
            if times[wish.name] > 1:
                raise BrokerError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            records.append(_upserted(wish) if isinstance(wish, Upsertion) else _deleted(image, wish))
            answers[wish.name] = _NONE
        except BrokerError as error:
            answers[wish.name] = (error.code, str(error))
    return records, answers


def derived(mechanism: ScramMechanism, *, salt: bytes, salted_password: bytes, iterations: int) -> ScramCredential:
    """Return what is kept of a salted password (RFC 5802, section 3)."""
    algorithm = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", algorithm)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(algorithm, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", algorithm),
        iterations=iterations,
    )


def _upserted(wish: Upsertion) -> AccessRecord:
    mechanism = _mechanism(wish)
    if wish.iterations < ITERATIONS_MIN:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if wish.iterations > ITERATIONS_MAX:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not wish.salt or not wish.salted_password:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")
    credential = derived(mechanism, salt=wish.salt, salted_password=wish.salted_password, iterations=wish.iterations)
    return credential_record(wish.name, mechanism, credential)


def _deleted(image: ClusterImage, wish: Deletion) -> AccessRecord:
    if _mechanism(wish) not in image.access.scram.get(wish.name, {}):
        reason = "Attempt to delete a user credential that does not exist"
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, reason)
    return RemoveUserScramCredentialRecord(name=wish.name, mechanism=wish.mechanism)


def _mechanism(wish: Deletion | Upsertion) -> ScramMechanism:
    if not wish.name:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(wish.name) > NAME_LENGTH_MAX:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username is longer than {NAME_LENGTH_MAX}")
    mechanism = MECHANISMS.get(wish.mechanism)
    if mechanism is None:
        raise BrokerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism
