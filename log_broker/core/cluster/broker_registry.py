"""
Which brokers are alive, as the active controller judges: registration, heartbeats and sessions (KIP-500, KIP-631).

What is decided goes through the metadata log and is replayed into the image. When a broker was last heard of is not:
each controller counts again from the moment it begins to lead, so a change of controller costs nobody a session. A
broker epoch names one registration; whoever speaks under an older one is refused, however late its words arrive. A
broker that was fenced has to register again, so that nothing from before its silence counts after it.

A leader may be replaced while it is alive and its lease holds: leaderships are levelled. It learns of that by replaying
the change, and until then takes itself for the leader. What its followers confirm under the new one it confirms as
well, being in the ISR, or it is not confirmed. So its lease is not prolonged until it has replayed the last change of
leaders, and nobody leaves the ISR while he may hold one from before.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from log_broker.core.cluster import elections
from log_broker.core.cluster.features import (
    LEVELS_KEPT_FROM,
    LISTENERS_FROM,
    METADATA_VERSION,
    ToldRanges,
    misfit,
    ranges_of,
)
from log_broker.core.cluster.image import BrokerImage, ClusterImage
from log_broker.core.cluster.records import BrokerRegistered, MetadataRecord, ToldListeners
from log_broker.errors import BrokerError, ErrorCode

SESSION_MS = 9_000  # broker.session.timeout.ms
BROKERS_MAX = 2_000  # that are registered, alive or not: all nodes keep all of them until they are unregistered
SILENT_SHARE = 3  # a broker is silent after this part of a session, in which it should have been heard of
UNKNOWN_EPOCH = -1


class Registration(NamedTuple):
    """
    A broker process that came up; `incarnation` is drawn again by each.

    `directory` is the id of its data directory, which only one process can have open, so one that comes with the
    directory of another proves that one to be gone. `previous_epoch` is the broker epoch under which that one stopped
    cleanly; whoever cannot tell it may have lost what was in memory only. `features` are the levels that it supports,
    `listeners` all that it has, with the one at `host` and `port` among them.
    """

    node_id: int
    host: str
    port: int
    incarnation: str
    rack: str | None = None
    directory: str = ""
    previous_epoch: int = UNKNOWN_EPOCH
    features: ToldRanges = ()
    listeners: ToldListeners = ()


class Heartbeat(NamedTuple):
    """
    A sign of life under a broker epoch. `replayed` is the version of the broker's image.

    Whoever says `takes_writes=False` has ended its lease before.
    """

    node_id: int
    broker_epoch: int
    replayed: int
    wants_shut_down: bool = False
    wants_fence: bool = False
    takes_writes: bool = True


class HeartbeatAnswer(NamedTuple):
    """What the broker is told once `records` are committed."""

    records: Sequence[MetadataRecord]
    is_caught_up: bool  # whether it has replayed its own registration and the last change of leaders
    is_fenced: bool
    should_shut_down: bool


class BrokerRegistry:
    """The sessions of one controller, from the moment it begins to lead. A decision changes nothing else here."""

    def __init__(self, image: ClusterImage, now_ms: int, *, session_ms: int = SESSION_MS) -> None:
        self._session_ms = session_ms
        self._heard_ms: dict[int, int] = {}
        self._replayed: dict[int, int] = {}  # how far each broker said it is
        self._began_ms = now_ms
        self._caught_up_ms: dict[int, int] = {}  # when each was last told that it is caught up
        self._leaders_version = image.version  # in which a leader was replaced for the last time, or before it
        self._unable: dict[int, int] = {}  # whose disk takes no writes: up to which version it was handed over from
        self._handed_over: dict[int, int] = {}  # the version that has what was decided for it, committed or not
        self._leaving_at: dict[int, int] = {}  # the version of the image in which a broker was first seen to leave
        self.hear_all(image, now_ms)

    def hear_all(self, image: ClusterImage, now_ms: int) -> None:
        """Give everybody a whole session to be heard of: those that an earlier controller knew, or while we slept."""
        self._heard_ms = {broker.node_id: now_ms for broker in image.alive_brokers()}

    def register(self, image: ClusterImage, wanted: Registration, now_ms: int) -> list[MetadataRecord]:
        """
        Decide on a broker that came up; no records when this very process is registered and the answer was lost.

        Raises BrokerError: DUPLICATE_BROKER_REGISTRATION while another process holds a session under the same id and
        has another data directory, since two that were given one id would otherwise throw each other out for ever;
        INVALID_REGISTRATION for the data directory of another broker; POLICY_VIOLATION for one too many;
        UNSUPPORTED_VERSION for one that does not support
        the levels that the cluster is at.
        """
        levels = image.levels
        if (reason := misfit(f"node {wanted.node_id}", ranges_of(wanted.features), levels)) is not None:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, reason)
        for broker in image.brokers.values():
            if wanted.directory and broker.directory == wanted.directory and broker.node_id != wanted.node_id:
                raise BrokerError(
                    ErrorCode.INVALID_REGISTRATION,
                    f"Broker {broker.node_id} is already registered with directory {wanted.directory}",
                )
        known = image.brokers.get(wanted.node_id)
        if known is None and len(image.brokers) >= BROKERS_MAX:
            raise BrokerError(ErrorCode.POLICY_VIOLATION, f"{BROKERS_MAX} brokers are registered: unregister some")
        changes: list[MetadataRecord] = []
        if known is not None:
            if known.incarnation == wanted.incarnation and not known.has_ended:
                self._heard_ms[wanted.node_id] = now_ms
                return []
            takes_over = bool(wanted.directory) and wanted.directory == known.directory
            if known.incarnation != wanted.incarnation and not takes_over and self.has_session(known, now_ms):
                raise BrokerError(
                    ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                    f"another process is registered as node {wanted.node_id} and was heard of just now",
                )
            is_same = known.incarnation == wanted.incarnation
            changes += elections.forget(
                image,
                wanted.node_id,
                is_clean=is_same or wanted.previous_epoch == known.epoch,
                is_wiped=bool(known.directory) and bool(wanted.directory) and not takes_over,
            )
        self._heard_ms[wanted.node_id] = now_ms
        self._replayed.pop(wanted.node_id, None)
        self._leaving_at.pop(wanted.node_id, None)
        self._handed_over.pop(wanted.node_id, None)
        self._note_disk(wanted.node_id, takes_writes=True)
        registered = BrokerRegistered(
            node_id=wanted.node_id,
            host=wanted.host,
            port=wanted.port,
            incarnation=wanted.incarnation,
            rack=wanted.rack,
            directory=wanted.directory,
            features=wanted.features if levels[METADATA_VERSION] >= LEVELS_KEPT_FROM else None,
            # One alone is where `host` and `port` are.
            listeners=wanted.listeners
            if len(wanted.listeners) > 1 and levels[METADATA_VERSION] >= LISTENERS_FROM
            else None,
        )
        return [*changes, registered]

    def heartbeat(self, image: ClusterImage, beat: Heartbeat, now_ms: int) -> HeartbeatAnswer:
        """
        Take a sign of life in.

        Raises BrokerError: BROKER_ID_NOT_REGISTERED, or STALE_BROKER_EPOCH for a broker that has to register again.
        """
        broker = check_broker_epoch(image, beat.node_id, beat.broker_epoch)
        self._heard_ms[beat.node_id] = now_ms
        self._replayed[beat.node_id] = beat.replayed
        self._note_disk(beat.node_id, takes_writes=beat.takes_writes)
        known_from = max(broker.epoch, self._leaders_version, self._handed_over.get(beat.node_id, 0))
        is_caught_up = beat.replayed >= known_from
        if is_caught_up:
            self._caught_up_ms[beat.node_id] = now_ms
        if broker.is_fenced:
            if beat.wants_shut_down or beat.wants_fence or not is_caught_up:
                return HeartbeatAnswer((), is_caught_up, is_fenced=True, should_shut_down=beat.wants_shut_down)
            records = elections.unfence(image, beat.node_id)
            return HeartbeatAnswer(records, is_caught_up, is_fenced=False, should_shut_down=False)
        if beat.wants_fence or (beat.wants_shut_down and self._may_stop(image, broker, now_ms)):
            records = elections.fence(image, beat.node_id)
            return HeartbeatAnswer(records, is_caught_up, is_fenced=True, should_shut_down=beat.wants_shut_down)
        records = []
        if beat.wants_shut_down and not broker.is_leaving:
            records = elections.leave(image, beat.node_id)
        elif not beat.takes_writes and (handed_over := self._hand_over(image, beat.node_id)):
            # Its lease has ended, and begins again when it has replayed who leads now.
            return HeartbeatAnswer(handed_over, is_caught_up=False, is_fenced=False, should_shut_down=False)
        return HeartbeatAnswer(records, is_caught_up, is_fenced=False, should_shut_down=False)

    @property
    def unable(self) -> Collection[int]:
        """The brokers whose disks take no writes."""
        return self._unable.keys()

    def expired(self, image: ClusterImage, now_ms: int) -> list[MetadataRecord]:
        """
        Decide on the brokers whose sessions have ended; repeats what is not committed yet.

        `image` is a draft: one is fenced after the other, and each sees what the fencing before it changed.
        """
        records: list[MetadataRecord] = []
        for broker in image.alive_brokers():
            if not self.has_session(broker, now_ms):
                fenced = elections.fence(image, broker.node_id)
                for record in fenced:
                    image.replay(record)
                records += fenced
        return records

    def has_ended(self, node_id: int, now_ms: int, *, silent_ms: int) -> bool:
        """
        Take note that a broker's process is gone, which ends its session; say whether that was new.

        It is not believed of a broker that was heard of within `silent_ms`.
        """
        heard_ms = self._heard_ms.get(node_id)
        if heard_ms is None or now_ms - heard_ms < silent_ms or now_ms - heard_ms >= self._session_ms:
            return False
        self._heard_ms[node_id] = now_ms - self._session_ms
        return True

    def leaders_changed(self, image: ClusterImage) -> None:
        """Take note that the image, as it is now, names other leaders than before."""
        self._leaders_version = image.version

    def may_have_missed_leaders(self, node_id: int, now_ms: int) -> bool:
        """Whether a broker may hold a lease and not know yet who leads now."""
        if self._replayed.get(node_id, 0) >= self._leaders_version:
            return False
        return now_ms < self._caught_up_ms.get(node_id, self._began_ms) + self._session_ms

    def next_deadline_ms(self, image: ClusterImage) -> int | None:
        """When the next session ends, if nothing is heard until then."""
        ends = [self._heard_ms.get(broker.node_id, 0) + self._session_ms for broker in image.alive_brokers()]
        return min(ends, default=None)

    def heard_ms(self, node_id: int) -> int:
        """Return when a broker was last heard of, 0 for one that never was."""
        return self._heard_ms.get(node_id, 0)

    def has_session(self, broker: BrokerImage, now_ms: int) -> bool:
        """Whether a broker was heard of not too long ago, and its process is not known to have ended."""
        return not broker.has_ended and now_ms < self.heard_ms(broker.node_id) + self._session_ms

    def _note_disk(self, node_id: int, *, takes_writes: bool) -> None:
        if takes_writes == (node_id in self._unable):
            if takes_writes:
                del self._unable[node_id]
            else:
                self._unable[node_id] = UNKNOWN_EPOCH
            # With one more, or less, that can take over, others may be able to hand over more.
            self._unable = dict.fromkeys(self._unable, UNKNOWN_EPOCH)

    def _hand_over(self, image: ClusterImage, node_id: int) -> Sequence[MetadataRecord]:
        """Decide what such a broker gives to others; looks again only when the image has changed."""
        if self._unable[node_id] == image.version:
            return ()
        records = elections.hand_over(image, node_id, self._unable)
        if records:
            self._handed_over[node_id] = max(self._handed_over.get(node_id, 0), image.version + len(records))
        else:
            self._unable[node_id] = image.version
        return records

    def _may_stop(self, image: ClusterImage, broker: BrokerImage, now_ms: int) -> bool:
        """
        Whether a broker that wants to stop can: it leads nothing, and the others know that already.

        Otherwise they would send clients to a broker that is gone. Those that have been silent for a while are not
        waited for: they may be gone themselves.
        """
        if elections.leads_any(image, broker.node_id):
            return False
        if not broker.is_leaving:
            return True
        since = self._leaving_at.setdefault(broker.node_id, image.version)
        heard_since_ms = now_ms - self._session_ms // SILENT_SHARE
        others = (each.node_id for each in image.alive_brokers() if not each.is_leaving)
        heard = (node_id for node_id in others if self._heard_ms.get(node_id, 0) >= heard_since_ms)
        return all(self._replayed.get(node_id, 0) >= since for node_id in heard)


def check_broker_epoch(image: ClusterImage, node_id: int, broker_epoch: int) -> BrokerImage:
    """
    Return the broker that speaks under an epoch.

    Raises BrokerError: BROKER_ID_NOT_REGISTERED, or STALE_BROKER_EPOCH for one that has registered again or must.
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} is not currently registered.")
    if broker.epoch != broker_epoch or broker.has_ended:
        said = "was fenced" if broker.has_ended else "has registered again"
        raise BrokerError(ErrorCode.STALE_BROKER_EPOCH, f"node {node_id} {said} since broker epoch {broker_epoch}")
    return broker
