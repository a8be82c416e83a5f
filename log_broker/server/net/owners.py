"""
Who may produce to a topic and loosen what its records must be, where only the owner of its contract may.

`fluvial.producers=owner`, the default, narrows what ACLs allow; it allows nothing by itself, and without an authorizer
it keeps nobody out. A topic that nobody owns is open to whom ACLs let write.
"""

from collections.abc import Collection
from typing import Protocol

from log_broker.config.broker import TopicConfig
from log_broker.config.contracts import CONTRACT_KEYS, ONLY_OWNER, PRODUCERS, TOPIC_ALIASES
from log_broker.core.security.authorizer import Rights
from log_broker.core.security.principal import Principal
from log_broker.interfaces import KnowsOwners, RecordValidator
from log_broker.server.process.ports import Cluster

OWNERS_SETTINGS = frozenset({key.name for key in CONTRACT_KEYS} | set(TOPIC_ALIASES))


class HasOwners(Cluster, Protocol):
    """A node that may know the owners of topics."""

    @property
    def validator(self) -> RecordValidator | None: ...


def keeps_out(node: HasOwners, rights: Rights, topic: str, config: TopicConfig) -> str | None:
    """Say why somebody may not produce to a topic, None where they may as far as its owner is concerned."""
    if config.fluvial_producers != ONLY_OWNER:
        return None
    if rights.is_super_user:
        return None
    if not isinstance(node.validator, KnowsOwners):
        found = node.cluster.topics.get(topic)
        if found is None or PRODUCERS not in found.overrides:
            # The default is for topics of contracts, of which this broker has none.
            return None
        return f"only its owner produces to {topic}, and this broker has no registry that knows it"
    owner = node.validator.owner_of(topic)
    if owner is None or rights.principal == Principal(owner):
        return None
    return f"only {owner}, who owns its values' subject, produces to {topic} (fluvial.producers=owner)"


def may_configure(node: HasOwners, rights: Rights, topic: str, names: Collection[str] | None) -> bool:
    """Whether somebody may change these settings of a topic, or with None replace all, for all its owner says."""
    found = node.cluster.topics.get(topic)
    if found is None or (names is not None and OWNERS_SETTINGS.isdisjoint(names)):
        return True
    return keeps_out(node, rights, topic, found.config) is None
