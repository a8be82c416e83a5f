"""
Whether somebody may do something: decided as Kafka's StandardAuthorizer decides it.

A super user may do everything. Otherwise all ACLs of the resource count: those of its name, of a prefix of its name
and of `*`. One that denies wins over any that allow. READ, WRITE, DELETE and ALTER allow DESCRIBE as well, and
ALTER_CONFIGS allows DESCRIBE_CONFIGS; a denial implies nothing. `allow.everyone.if.no.acl.found` speaks only where no
ACL is about the resource at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from log_broker.config.broker import BrokerConfig
from log_broker.core.security.acls import (
    ANY_USER,
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode

# Decisions are remembered until an ACL changes: some 300 bytes each, with names no longer than these.
REMEMBERED_MAX = 50_000
REMEMBERED_NAME_MAX = 255

# Of each operation, those whose permission includes it.
_IMPLIED_BY: Mapping[Operation, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
_NOTHING: frozenset[Operation] = frozenset()

ByPrincipal = dict[str, list[Acl]]


@dataclass(slots=True)
class _Index:
    """The ACLs about one type of resource: by what they name, and there by whom."""

    literal: dict[str, ByPrincipal] = field(default_factory=dict)
    prefixed: dict[str, ByPrincipal] = field(default_factory=dict)
    prefix_lengths: list[int] = field(default_factory=list)

    def add(self, acl: Acl) -> None:
        names = self.literal if acl.pattern is PatternType.LITERAL else self.prefixed
        if acl.pattern is PatternType.PREFIXED and len(acl.name) not in self.prefix_lengths:
            self.prefix_lengths.append(len(acl.name))
        names.setdefault(acl.name, {}).setdefault(acl.principal, []).append(acl)

    def about(self, name: str) -> Iterator[ByPrincipal]:
        """Yield the ACLs that a resource of this name falls under."""
        for each in (name, WILDCARD):
            if (found := self.literal.get(each)) is not None:
                yield found
        for length in self.prefix_lengths:
            if length <= len(name) and (found := self.prefixed.get(name[:length])) is not None:
                yield found

    def of(self, principal: str) -> Iterator[Acl]:
        """Yield all ACLs about a principal."""
        for names in (self.literal, self.prefixed):
            for by_principal in names.values():
                for who in (principal, ANY_USER):
                    yield from by_principal.get(who, ())


class Authorizer:
    """
    Decides by the ACLs that it was given last.

    `super_users` are written as ACLs write principals. Until `follow` has been called only they are allowed anything.
    """

    def __init__(self, super_users: Iterable[str] = (), *, everyone_if_no_acl: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self.everyone_if_no_acl = everyone_if_no_acl
        self._is_ready = False
        self._indexes: dict[ResourceType, _Index] = {}
        self._remembered: dict[tuple[Principal, str, Operation, ResourceType, str], bool] = {}
        self._remembered_of_types: dict[tuple[Principal, str, Operation, ResourceType], bool] = {}

    def follow(self, acls: Iterable[Acl]) -> None:
        """Decide by these ACLs from now on."""
        indexes: dict[ResourceType, _Index] = {}
        for acl in acls:
            indexes.setdefault(acl.resource, _Index()).add(acl)
        self._indexes = indexes
        self._remembered.clear()
        self._remembered_of_types.clear()
        self._is_ready = True

    def allows(self, principal: Principal, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        """Whether a principal that asks from a host may do something with the resource of this name."""
        key = (principal, host, operation, resource, name)
        decision = self._remembered.get(key)
        if decision is None:
            decision = self._decide(str(principal), host, operation, resource, name)
            if len(name) <= REMEMBERED_NAME_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = decision
        return decision

    def allows_some(self, principal: Principal, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether a principal may do something with at least one resource of a type, one that is not there included."""
        key = (principal, host, operation, resource)
        decision = self._remembered_of_types.get(key)
        if decision is None:
            # A name that no ACL knows: whom everything is allowed by default, or by being a super user.
            decision = self.allows(principal, host, operation, resource, "hardcode") or self._has_some(*key)
            if len(self._remembered_of_types) >= REMEMBERED_MAX:
                self._remembered_of_types.clear()
            self._remembered_of_types[key] = decision
        return decision

    def operations(self, principal: Principal, host: str, resource: ResourceType, name: str) -> int:
        """Return a bit for each operation that is allowed, at the operation's number."""
        return sum(
            1 << operation
            for operation in OPERATIONS_OF[resource]
            if self.allows(principal, host, operation, resource, name)
        )

    def _decide(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        if principal in self.super_users:
            return True
        if not self._is_ready:
            return False
        index = self._indexes.get(resource)
        is_about_it = is_allowed = False
        includes = _IMPLIED_BY.get(operation, _NOTHING)
        for by_principal in () if index is None else index.about(name):
            is_about_it = True
            for who in (principal, ANY_USER):
                for acl in by_principal.get(who, ()):
                    if acl.host not in {host, WILDCARD}:
                        continue
                    if acl.permission is Permission.DENY:
                        if acl.operation in {operation, Operation.ALL}:
                            return False
                    elif acl.operation in {operation, Operation.ALL} or acl.operation in includes:
                        is_allowed = True
        return is_allowed if is_about_it else self.everyone_if_no_acl

    def _has_some(self, principal: Principal, host: str, operation: Operation, resource: ResourceType) -> bool:
        """Whether an ACL allows the operation, itself or by ALL, on what no other one denies whole."""
        index = self._indexes.get(resource)
        if index is None:
            return False
        acls = [
            acl
            for acl in index.of(str(principal))
            if acl.host in {host, WILDCARD} and acl.operation in {operation, Operation.ALL}
        ]
        denied = {(acl.pattern, acl.name) for acl in acls if acl.permission is Permission.DENY}
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        prefixes = tuple(name for pattern, name in denied if pattern is PatternType.PREFIXED)
        return any(
            acl.permission is Permission.ALLOW
            and (
                (acl.pattern is PatternType.LITERAL and acl.name == WILDCARD)
                or not (
                    (acl.pattern is PatternType.LITERAL and (acl.pattern, acl.name) in denied)
                    or acl.name.startswith(prefixes)
                )
            )
            for acl in acls
        )


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """Return the authorizer that a node's settings ask for; raises BrokerError(INVALID_CONFIG)."""
    users = super_users_of(config)
    if not config.authorizer_class_name:
        return None
    return Authorizer(users, everyone_if_no_acl=config.allow_everyone_if_no_acl_found)


def super_users_of(config: BrokerConfig) -> list[str]:
    """Return the super users that a node's settings name; raises BrokerError(INVALID_CONFIG)."""
    users = [text.strip() for text in config.super_users.split(";") if text.strip()]
    for text in users:
        try:
            Principal.parse(text)
        except ValueError as error:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"super.users: {error}") from None
    return users


@dataclass(frozen=True, slots=True)
class Rights:
    """What one principal that asks from one host may do."""

    authorizer: Authorizer
    principal: Principal
    host: str

    def may(self, operation: Operation, resource: ResourceType, name: str) -> bool:
        return self.authorizer.allows(self.principal, self.host, operation, resource, name)

    def may_some(self, operation: Operation, resource: ResourceType) -> bool:
        return self.authorizer.allows_some(self.principal, self.host, operation, resource)

    def may_cluster(self, operation: Operation) -> bool:
        return self.authorizer.allows(self.principal, self.host, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    @property
    def is_super_user(self) -> bool:
        """Whether everything is allowed."""
        return str(self.principal) in self.authorizer.super_users

    def operations(self, resource: ResourceType, name: str) -> int:
        return self.authorizer.operations(self.principal, self.host, resource, name)
