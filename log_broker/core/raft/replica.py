"""
What a replica of the metadata quorum has in every role: its promises, its log, its voters and how far all is decided.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from log_broker.core.raft.effects import (
    NOTHING_PROMISED,
    AppendEntries,
    Committed,
    DropLogPrefix,
    Effect,
    InstallSnapshot,
    QuorumState,
    SaveQuorumState,
    SendRequest,
    SendResponse,
    TakeSnapshot,
    TruncateLog,
)
from log_broker.core.raft.log import LOG_BEGIN, Entry, EntryKind, OffsetAndEpoch, RaftLog, Snapshot
from log_broker.core.raft.messages import FetchRequest, RaftRequest, RaftResponse
from log_broker.core.raft.voters import ReplicaKey, VoterHistory, VoterSet

EPOCH_MAX = 2**31 - 2  # one below the wire's largest, so that the epoch after any that is kept can still be written
EPOCHS_AT_FIRST = 2**20
_COUNTED_FROM_S = 1_735_689_600  # 2025-01-01


def epoch_bound(unix_s: int) -> int:
    """
    Return the highest epoch that elections can have come to by a time: about a million, and one more each second.

    Any message may name any epoch, and what a replica adopts it keeps for ever. A bound that all replicas share has
    them agree on what to refuse; a bound on the distance would leave one behind whom a stranger led ahead in steps.
    """
    return min(EPOCH_MAX, EPOCHS_AT_FIRST + max(0, unix_s - _COUNTED_FROM_S))


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Timeouts under Kafka's names without `controller.quorum.`, in ms, and bounds."""

    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_wait_ms_max: int = 500
    observer_fetch_wait_ms_max: int = 1_000  # and of anybody, whatever he asks for
    fetch_bytes_max: int = 1024 * 1024
    add_voter_timeout_ms: int = 30_000
    observer_session_ms: int = 300_000
    observers_max: int = 1_000
    snapshot_entries: int = 10_000  # committed behind the last snapshot before the next is taken
    snapshot_trailing_entries: int = 1_000  # kept in front of a snapshot for followers that lag a little
    snapshot_part_bytes: int = 1024 * 1024
    uncommitted_entries_max: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a replica finds on its disk: entries from `log_start` on, which reach at least to the snapshot's end."""

    state: QuorumState = NOTHING_PROMISED
    snapshot: Snapshot | None = None
    log_start: OffsetAndEpoch = LOG_BEGIN
    entries: tuple[Entry, ...] = ()


class RoleChanges(Protocol):
    """What a role asks for when it ends."""

    def become_unattached(self, epoch: int, *, soon: bool = False) -> None: ...

    def become_prospective(self, *, last_leader: int | None) -> None: ...

    def become_candidate(self) -> None: ...

    def become_leader(self) -> None: ...

    def become_follower(self, epoch: int, leader_id: int) -> None: ...

    def resign(self) -> None: ...


class Replica:
    """
    The state that all roles share, and what they do with it.

    Always: what is decided is in the log, so log start <= high_watermark <= log end; a synced end beyond the log's
    end is cut back with it. Within one epoch `state.voted` is set once and never changes. `state.leader_id` is what
    this replica was told, which may be wrong until that leader has answered a fetch, unless it is this replica itself.
    """

    def __init__(
        self,
        key: ReplicaKey,
        config: RaftConfig,
        bootstrap: VoterSet,
        recovered: Recovered,
        jitter: Callable[[int], int],
    ) -> None:
        self.key = key
        self.config = config
        self.bootstrap = bootstrap
        self.jitter = jitter  # an evenly drawn int from 0 up to, not including, its argument
        self.snapshot = recovered.snapshot
        self.log = RaftLog(recovered.log_start, recovered.entries)
        # The log may outlive the file with the promises; its epochs have been, and none of them may come again.
        forgotten = recovered.state.epoch < self.log.last_epoch
        self.state = QuorumState(epoch=self.log.last_epoch) if forgotten else recovered.state
        self.synced_end = self.log.end_offset
        self.high_watermark = 0
        self.voters = VoterHistory(bootstrap)
        if recovered.snapshot is not None:
            self.high_watermark = recovered.snapshot.id.offset
            self.voters.start_at(recovered.snapshot.id.offset, recovered.snapshot.voters)
        self._note_voters(self.high_watermark, self.log.between(self.high_watermark, self.log.end_offset))
        self.now_ms = 0
        self.out: list[Effect] = []
        self._request_id = 0
        self._store_number = 0
        self._stores: deque[tuple[int, int]] = deque()  # (number, end) of what is on its way to the disk
        self._takes_snapshot = False

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def is_voter(self) -> bool:
        """Whether this replica votes, as far as its own log tells."""
        return self.key in self.voters.current

    def election_ms(self) -> int:
        """Draw an election timeout."""
        return self.config.election_timeout_ms + self.jitter(self.config.election_timeout_ms)

    def save(self, state: QuorumState) -> None:
        """Remember a promise for ever, before anything that follows is done."""
        old = self.state
        assert old.epoch <= state.epoch <= EPOCH_MAX, "epochs only grow, and fit the wire"
        if state.epoch == old.epoch:
            assert old.voted in {None, state.voted}, f"a second vote in epoch {state.epoch}"
            led = old.leader_id == self.key.node_id
            assert not led or state.leader_id == old.leader_id, f"a second leader in epoch {state.epoch}"
        if state != old:
            self.state = state
            if self.out and isinstance(self.out[-1], SaveQuorumState):
                self.out.pop()  # one sync for a new epoch and the vote in it
            self.out.append(SaveQuorumState(state))

    def request(self, to: int, body: RaftRequest) -> int:
        """Send a request and return the id that its answer will have."""
        self._request_id += 1
        self.out.append(SendRequest(to, self._request_id, body))
        return self._request_id

    def answer(self, token: Any, body: RaftResponse) -> None:
        """Answer a request."""
        self.out.append(SendResponse(token, body))

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Put entries behind the log; they count once they are synced."""
        base_offset = self.log.end_offset
        self.log.append(entries)
        self._note_voters(base_offset, entries)
        self._store_number += 1
        self._stores.append((self._store_number, self.log.end_offset))
        self.out.append(AppendEntries(self._store_number, base_offset, entries))

    def truncate(self, end_offset: int) -> None:
        """Drop the log's tail, which another leader has decided against."""
        assert end_offset >= self.high_watermark, f"truncation to {end_offset} below what is decided"
        self.log.truncate(end_offset)
        self.voters.truncate(end_offset)
        self.synced_end = min(self.synced_end, end_offset)
        self._stores = deque((number, min(end, end_offset)) for number, end in self._stores)
        self.out.append(TruncateLog(end_offset))

    def install(self, snapshot: Snapshot) -> None:
        """Begin again with a snapshot from the leader."""
        assert snapshot.id.offset > self.high_watermark, "a snapshot of what is here already"
        self.snapshot = snapshot
        self.log.reset(snapshot.id)
        self.voters.start_at(snapshot.id.offset, snapshot.voters)
        self.high_watermark = snapshot.id.offset
        self.synced_end = 0
        self._store_number += 1
        self._stores = deque((number, 0) for number, _ in self._stores)
        self._stores.append((self._store_number, snapshot.id.offset))
        self._takes_snapshot = False
        self.out.append(InstallSnapshot(self._store_number, snapshot))

    def stored(self, number: int) -> None:
        """Take in that the disk has got so far."""
        while self._stores and self._stores[0][0] <= number:
            self.synced_end = self._stores.popleft()[1]
        self._take_snapshot()

    def fetch_request(self, wait_ms: int = 0) -> FetchRequest | None:
        """Return the request for what follows our log, None while part of the log is still on its way to the disk."""
        if self.synced_end < self.log.end_offset:
            return None
        return FetchRequest(
            epoch=self.epoch,
            replica=self.key,
            log_end=self.log.end,
            high_watermark=self.high_watermark,
            wait_ms=wait_ms,
        )

    def commit(self, end_offset: int) -> None:
        """Take in that all before `end_offset` is decided."""
        if end_offset <= self.high_watermark:
            return
        self.out.append(Committed(self.high_watermark, self.log.between(self.high_watermark, end_offset)))
        self.high_watermark = end_offset
        self._take_snapshot()

    def snapshot_stored(self, snapshot: Snapshot) -> None:
        """Let go of the entries that a snapshot of our own state machine holds."""
        if not self._takes_snapshot or (self.snapshot is not None and snapshot.id.offset <= self.snapshot.id.offset):
            return  # one from the leader has overtaken it
        self._takes_snapshot = False
        self.snapshot = snapshot
        self.voters.compact(snapshot.id.offset)
        start = snapshot.id.offset - self.config.snapshot_trailing_entries
        if start > self.log.start_offset:
            self.log.advance_start(start)
        self.out.append(DropLogPrefix(self.log.start_offset))

    def _take_snapshot(self) -> None:
        end = self.high_watermark
        last = self.snapshot.id.offset if self.snapshot is not None else 0
        if self._takes_snapshot or end - last < self.config.snapshot_entries or end > self.synced_end:
            return
        self._takes_snapshot = True
        name = OffsetAndEpoch(end, self.log.epoch_at(end - 1))
        self.out.append(TakeSnapshot(name, self.voters.before(end).encode()))

    def _note_voters(self, base_offset: int, entries: tuple[Entry, ...]) -> None:
        for offset, entry in enumerate(entries, base_offset):
            if entry.kind is EntryKind.VOTERS:
                self.voters.add(offset, VoterSet.decode(entry.data))
