"""
The least replication factor (`fluvial.replication.factor.min`): what keeps topics from being made with too few copies.

Topics that are there keep what they have, and grow and move with it. The brokers' own topics are never refused, as
without them no group, transaction or quarantine would work: they are made with as many replicas as are demanded, or as
there are brokers.
"""

from log_broker.config.policy import REPLICATION_FACTOR_MIN
from log_broker.core.cluster.image import INTERNAL_TOPICS
from log_broker.core.cluster.quarantine_topics import is_quarantine
from log_broker.errors import BrokerError, ErrorCode


def is_brokers_own(topic: str) -> bool:
    """Whether brokers make the topic for themselves, when they first need it."""
    return topic in INTERNAL_TOPICS or is_quarantine(topic)


def check_factor(what: str, factor: int, least: int) -> None:
    """Raise BrokerError(POLICY_VIOLATION) for fewer replicas than `least`."""
    if factor < least:
        raise BrokerError(
            ErrorCode.POLICY_VIOLATION,
            f"{what} would have a replication factor of {factor}, and {REPLICATION_FACTOR_MIN} is {least}: ask for"
            f" {least} replicas or more, or lower {REPLICATION_FACTOR_MIN}.",
        )
