"""
The role that pulls: fetches what the leader has, cuts its own log where that diverges, and takes a snapshot if it must.

    Fetch ──▶ entries     append them, and when they are on the disk Fetch again, which acknowledges them
          ──▶ diverging   truncate to the end that both logs share, Fetch again
          ──▶ snapshot    FetchSnapshot part by part, replace the log by it, Fetch again

One request is under way at a time. A voter that hears nothing of use for the fetch timeout stands for election; an
observer looks for the leader elsewhere.
"""

from log_broker.core.raft.log import OffsetAndEpoch, Snapshot
from log_broker.core.raft.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftResponse,
)
from log_broker.core.raft.replica import Replica, RoleChanges
from log_broker.core.raft.voters import VoterSet
from log_broker.errors import ErrorCode


class _Download:
    """A snapshot on its way here."""

    __slots__ = ("content", "id")

    def __init__(self, snapshot_id: OffsetAndEpoch) -> None:
        self.id = snapshot_id
        self.content = bytearray()


class Follower:
    """Follows one leader in one epoch."""

    leads = False

    def __init__(self, replica: Replica, changes: RoleChanges, leader_id: int) -> None:
        self._replica = replica
        self._changes = changes
        self.leader_id = leader_id
        self.has_fetched = False
        self._download: _Download | None = None
        self._awaited: int | None = None  # the id of the request under way
        self._ask_ms: int | None = None  # when to ask next, or to give the request under way up
        self._heard()

    def start(self) -> None:
        """Begin to fetch."""
        self._ask()

    def deadline_ms(self) -> int:
        return self._timeout_ms if self._ask_ms is None else min(self._timeout_ms, self._ask_ms)

    def tick(self) -> None:
        replica = self._replica
        if replica.now_ms >= self._timeout_ms:
            if replica.is_voter:
                self._changes.become_prospective(last_leader=self.leader_id)
            else:
                self._changes.become_unattached(replica.epoch)
        elif self._ask_ms is not None and replica.now_ms >= self._ask_ms:
            self._ask()

    def grants_pre_vote(self) -> bool:
        """Whoever has a leader that answers wants no other (KIP-996)."""
        return not self.has_fetched

    def granted_vote(self) -> None:
        """A follower votes for nobody."""

    def on_stored(self) -> None:
        """Fetch on: all that came is on the disk."""
        if self._awaited is None:
            self._ask()

    def on_response(self, request_id: int, body: RaftResponse) -> None:
        if request_id != self._awaited:
            return
        self._awaited = None
        if body.epoch != self._replica.epoch:
            # Whoever leads this epoch is in it: this node was named by somebody who does not know, or lies.
            self._changes.become_unattached(self._replica.epoch, soon=True)
            return
        match body:
            case FetchResponse():
                self._fetched(body)
            case FetchSnapshotResponse():
                self._part_fetched(body)

    def _heard(self) -> None:
        replica = self._replica
        spread_ms = replica.jitter(replica.config.election_timeout_ms)
        self._timeout_ms = replica.now_ms + replica.config.fetch_timeout_ms + spread_ms

    def _ask(self) -> None:
        replica = self._replica
        config = replica.config
        wait_ms = config.fetch_wait_ms_max if replica.is_voter else config.observer_fetch_wait_ms_max
        body: FetchRequest | FetchSnapshotRequest | None = replica.fetch_request(wait_ms)
        if self._download is not None:
            position = len(self._download.content)
            body = FetchSnapshotRequest(
                epoch=replica.epoch, replica=replica.key, snapshot_id=self._download.id, position=position
            )
        if body is None:
            self._awaited = self._ask_ms = None  # on_stored goes on
            return
        self._awaited = replica.request(self.leader_id, body)
        self._ask_ms = replica.now_ms + replica.config.request_timeout_ms

    def _ask_later(self) -> None:
        self._ask_ms = self._replica.now_ms + self._replica.config.retry_backoff_ms

    def _fetched(self, body: FetchResponse) -> None:
        replica = self._replica
        if body.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._changes.become_unattached(replica.epoch, soon=True)
            return
        newest = body.entries[-1].epoch if body.entries else 0
        if body.snapshot_id is not None:
            newest = body.snapshot_id.epoch
        if body.error is not ErrorCode.NONE or newest > replica.epoch:
            self._ask_later()
            return
        self._heard()
        self.has_fetched = True
        if body.diverging is not None:
            replica.truncate(self.shared_end(body.diverging))
        elif body.snapshot_id is not None:
            self._download = _Download(body.snapshot_id)
        else:
            if body.entries:
                replica.append(body.entries)
            replica.commit(min(body.high_watermark, replica.log.end_offset))
        self._ask()

    def shared_end(self, diverging: OffsetAndEpoch) -> int:
        """Return where the log must be cut, given the end of the leader's largest epoch up to our last."""
        ours = self._replica.log.end_of_epoch(diverging.epoch)
        assert ours is not None, "logs agree on all that is in a snapshot"
        return min(ours.offset, diverging.offset)

    def _part_fetched(self, body: FetchSnapshotResponse) -> None:
        download = self._download
        if body.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self._changes.become_unattached(self._replica.epoch, soon=True)
            return
        if body.error is not ErrorCode.NONE or download is None or body.snapshot_id != download.id:
            self._download = None  # the leader has a newer one by now; Fetch tells which
            self._ask_later()
            return
        self._heard()
        self.has_fetched = True
        assert body.position == len(download.content), "the answer to the one request under way"
        download.content += body.part
        if len(download.content) >= body.size:
            self._download = None
            self._replica.install(
                Snapshot(id=download.id, voters=VoterSet.decode(body.voters), data=bytes(download.content))
            )
        self._ask()
