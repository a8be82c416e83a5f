"""Who may do what, and what is kept of users' passwords: the part of the cluster's image that is about access."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from log_broker.core.cluster.records import (
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from log_broker.core.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from log_broker.core.security.credentials import ScramCredential, ScramMechanism

AccessRecord = (
    AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
)

# Kafka's numbers, in requests and records.
MECHANISMS: Mapping[int, ScramMechanism] = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
MECHANISM_NUMBERS: Mapping[ScramMechanism, int] = {mechanism: number for number, mechanism in MECHANISMS.items()}


@dataclass(slots=True)
class AccessImage:
    """
    ACLs by their ids, and credentials by user and mechanism. `version` counts the changes.

    There may be many and they change seldom, so that images share one until it changes: `is_shared` says so.
    """

    acls: dict[str, Acl] = field(default_factory=dict)
    scram: dict[str, Mapping[ScramMechanism, ScramCredential]] = field(default_factory=dict)
    version: int = 0
    is_shared: bool = field(default=False, compare=False)

    def shared(self) -> "AccessImage":
        """Return this for one more image; whoever changes it from now on makes a copy first."""
        self.is_shared = True
        return self

    def after(self, record: AccessRecord) -> "AccessImage":
        """Return what the record makes of this, which is this itself where nobody shares it."""
        changed = AccessImage(dict(self.acls), dict(self.scram), self.version) if self.is_shared else self
        changed._replay(record)
        return changed

    def _replay(self, record: AccessRecord) -> None:
        self.version += 1
        match record:
            case AccessControlEntryRecord():
                self.acls[record.id] = acl_of(record)
            case RemoveAccessControlEntryRecord():
                del self.acls[record.id]
            case UserScramCredentialRecord():
                self.scram[record.name] = {
                    **self.scram.get(record.name, {}),
                    MECHANISMS[record.mechanism]: ScramCredential(
                        salt=bytes.fromhex(record.salt),
                        stored_key=bytes.fromhex(record.stored_key),
                        server_key=bytes.fromhex(record.server_key),
                        iterations=record.iterations,
                    ),
                }
            case RemoveUserScramCredentialRecord():
                left = {**self.scram[record.name]}
                del left[MECHANISMS[record.mechanism]]
                if left:
                    self.scram[record.name] = left
                else:
                    del self.scram[record.name]


class ClusterUsers:
    """The users of a cluster as an image has them at any time."""

    def __init__(self, access: Callable[[], AccessImage]) -> None:
        self._access = access

    def scram(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._access().scram.get(name, {}).get(mechanism)


def acl_of(record: AccessControlEntryRecord) -> Acl:
    """Return the ACL that a record is about."""
    return Acl(
        resource=ResourceType(record.resource_type),
        name=record.resource_name,
        pattern=PatternType(record.pattern_type),
        principal=record.principal,
        host=record.host,
        operation=Operation(record.operation),
        permission=Permission(record.permission_type),
    )


def acl_record(acl_id: str, acl: Acl) -> AccessControlEntryRecord:
    """Return the record that makes an ACL."""
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=int(acl.resource),
        resource_name=acl.name,
        pattern_type=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def credential_record(name: str, mechanism: ScramMechanism, credential: ScramCredential) -> UserScramCredentialRecord:
    """Return the record that keeps a credential."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=MECHANISM_NUMBERS[mechanism],
        salt=credential.salt.hex(),
        stored_key=credential.stored_key.hex(),
        server_key=credential.server_key.hex(),
        iterations=credential.iterations,
    )


def records_of(image: AccessImage) -> list[AccessControlEntryRecord | UserScramCredentialRecord]:
    """Return the records that give the image again, its version excepted."""
    return [
        *(acl_record(acl_id, acl) for acl_id, acl in image.acls.items()),
        *(
            credential_record(name, mechanism, credential)
            for name, credentials in image.scram.items()
            for mechanism, credential in credentials.items()
        ),
    ]


def image_of(records: Iterable[Any], version: int) -> AccessImage:
    """Return the image that the records give."""
    image = AccessImage()
    for record in records:
        image = image.after(record)
    image.version = version
    return image
