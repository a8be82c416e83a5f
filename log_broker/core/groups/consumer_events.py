"""The event, the answer and the settings of consumer groups of the new protocol (KIP-848)."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from log_broker.core.cluster.image import ClusterImage
from log_broker.core.groups.consumer_group_records import TopicIdPartitions
from log_broker.errors import ErrorCode

# Returns the topics whose whole name a regular expression matches; raises BrokerError(INVALID_REGULAR_EXPRESSION).
MatchTopics = Callable[[str, Collection[str]], frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """
    A member joins (epoch 0), stays, leaves (-1) or leaves for a while (-2, static members).

    None and -1 stand for what has not changed since its last heartbeat. `fresh_id` is the id of a member that brings
    none; `names_itself` says that it must bring one. `may_describe` says which topics a regular expression may match
    that is matched because of this heartbeat; None for all.
    """

    token: Any
    member_id: str
    fresh_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: TopicIdPartitions | None = None
    names_itself: bool = False
    may_describe: Callable[[str], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswer:
    """`assignment` is None when the member has it already."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: TopicIdPartitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """What holds for one group now; the first assignor is the default one. Times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignors: tuple[str, ...] = ("uniform", "range")
    members_max: int = 2**31 - 1
    classic_members_max: int = 2**31 - 1
    allows_upgrade: bool = True
    allows_downgrade: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSupport:
    """What a group of the new protocol needs to know of the world around it."""

    cluster: ClusterImage
    settings: Callable[[], ConsumerGroupSettings]
    match_topics: MatchTopics
