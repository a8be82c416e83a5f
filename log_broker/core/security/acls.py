"""
Access control lists: who is allowed or denied to do what on which resources, as Kafka's ACLs say it (KIP-11, KIP-290).

The numbers are those that requests and metadata records carry.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode

WILDCARD = "*"
ANY_USER = "User:*"
CLUSTER_NAME = "kafka-cluster"  # of the one resource of its type


class ResourceType(IntEnum):
    """What a right is about; ANY stands in filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a resource is named: ANY and MATCH stand in filters only."""

    ANY = 1
    MATCH = 2  # all that a resource of the name falls under
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What somebody does; ANY stands in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """What an ACL says; ANY stands in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


# What the bits of authorized operations are about (KIP-430).
OPERATIONS_OF: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """One entry. `principal` is written as `User:name`; `User:*` and the host `*` are anybody and anywhere."""

    resource: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def check(self) -> None:
        """Raise BrokerError(INVALID_REQUEST) for what no ACL can say."""
        if self.resource is ResourceType.ANY:
            raise _invalid("Invalid resourceType ANY")
        if self.pattern not in {PatternType.LITERAL, PatternType.PREFIXED}:
            raise _invalid(f"Invalid patternType {self.pattern.name}")
        if self.operation is Operation.ANY:
            raise _invalid("Invalid operation ANY")
        if self.permission is Permission.ANY:
            raise _invalid("Invalid permissionType ANY")
        if not self.name:
            raise _invalid("Resource name should not be empty")
        if self.resource is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
        try:
            Principal.parse(self.principal)
        except ValueError as error:
            raise _invalid(f"Could not parse principal from `{self.principal}`: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which ACLs are meant; None and ANY leave open what they are of."""

    resource: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource in {ResourceType.ANY, acl.resource}
            and self._matches_name(acl)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern not in {PatternType.ANY, PatternType.MATCH, acl.pattern}:
            return False
        if self.name is None:
            return True
        if self.pattern is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in {self.name, WILDCARD}


def _invalid(why: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, why)
