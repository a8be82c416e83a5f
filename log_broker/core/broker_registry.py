"""
Which brokers are alive, as the active controller judges: registration, heartbeats and sessions (KIP-500, KIP-631).

What is decided goes through the metadata log and is replayed into the image. When a broker was last heard of is not:
each controller counts anew from the moment it begins to lead, so a change of controller costs nobody a session. A
broker epoch names one registration; whoever speaks under an older one is refused, however late its words arrive.
"""

from collections.abc import Sequence
from typing import NamedTuple

from log_broker.core import controller
from log_broker.core.cluster import BrokerImage, ClusterImage
from log_broker.core.cluster_records import BrokerFenced, BrokerRegistered
from log_broker.errors import BrokerError, ErrorCode

SESSION_MS = 9_000  # broker.session.timeout.ms


class Registration(NamedTuple):
    """A broker process that came up; `incarnation` is drawn anew by each."""

    node_id: int
    host: str
    port: int
    incarnation: str


class Heartbeat(NamedTuple):
    """A sign of life under a broker epoch. `replayed` is how far the broker has replayed the metadata log."""

    node_id: int
    broker_epoch: int
    replayed: int
    wants_shut_down: bool = False


class HeartbeatAnswer(NamedTuple):
    """What the broker is told once `records` are committed."""

    records: Sequence[BrokerFenced]
    is_caught_up: bool  # whether it has replayed its own registration
    is_fenced: bool
    should_shut_down: bool


class BrokerRegistry:
    """The sessions of one controller, from the moment it begins to lead. A decision changes nothing else here."""

    def __init__(self, image: ClusterImage, now_ms: int, *, session_ms: int = SESSION_MS) -> None:
        self._session_ms = session_ms
        # Those that an earlier controller knew as alive get a whole session to be heard of.
        self._heard_ms = {broker.node_id: now_ms for broker in image.alive_brokers()}

    def register(self, image: ClusterImage, wanted: Registration, now_ms: int) -> BrokerRegistered | None:
        """
        Decide on a broker that came up; None when this very process is registered and the answer was lost.

        Raises BrokerError(DUPLICATE_BROKER_REGISTRATION) while another process holds a session under the same id: two
        that were given one id would otherwise throw each other out for ever.
        """
        known = image.brokers.get(wanted.node_id)
        if known is not None and not known.is_fenced:
            if known.incarnation == wanted.incarnation:
                self._heard_ms[wanted.node_id] = now_ms
                return None
            if self._has_session(known, now_ms):
                raise BrokerError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"another process is registered as node {wanted.node_id} and was heard of just now",
                )
        self._heard_ms[wanted.node_id] = now_ms
        return controller.register_broker(wanted.node_id, wanted.host, wanted.port, wanted.incarnation)

    def heartbeat(self, image: ClusterImage, beat: Heartbeat, now_ms: int) -> HeartbeatAnswer:
        """Take a sign of life in; raises BrokerError for a broker that is not registered, or is so anew since."""
        broker = image.brokers.get(beat.node_id)
        if broker is None:
            raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"node {beat.node_id} has never registered")
        if broker.epoch != beat.broker_epoch:
            raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"node {beat.node_id} has registered anew since")
        if not broker.is_fenced:
            self._heard_ms[beat.node_id] = now_ms
        fence = controller.fence_broker(image, beat.node_id) if beat.wants_shut_down else None
        return HeartbeatAnswer(
            records=() if fence is None else (fence,),
            is_caught_up=beat.replayed >= broker.epoch,
            is_fenced=broker.is_fenced or fence is not None,
            should_shut_down=beat.wants_shut_down,
        )

    def expired(self, image: ClusterImage, now_ms: int) -> list[BrokerFenced]:
        """Decide on the brokers whose sessions have ended; repeats what is not committed yet."""
        return [
            BrokerFenced(node_id=broker.node_id)
            for broker in image.alive_brokers()
            if not self._has_session(broker, now_ms)
        ]

    def next_deadline_ms(self, image: ClusterImage) -> int | None:
        """When the next session ends, if nothing is heard until then."""
        ends = [self._heard_ms.get(broker.node_id, 0) + self._session_ms for broker in image.alive_brokers()]
        return min(ends, default=None)

    def _has_session(self, broker: BrokerImage, now_ms: int) -> bool:
        return now_ms < self._heard_ms.get(broker.node_id, 0) + self._session_ms
