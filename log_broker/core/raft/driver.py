"""
Carries out what a Raft machine asks, by way of whatever surrounds it: the same code under asyncio and in simulation.

Effects stand in one queue. A SaveQuorumState stops the queue until it is on the disk, so that no vote is sent before it
is remembered; everything else that must be durable first waits inside the machine for Stored. The disk does its jobs
one after the other in the order given.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from log_broker.core.raft.effects import (
    AppendEntries,
    Committed,
    DropLogPrefix,
    Effect,
    Event,
    InstallSnapshot,
    LeadershipBegan,
    LeadershipEnded,
    Proposed,
    QuorumState,
    SaveQuorumState,
    SendRequest,
    SendResponse,
    SnapshotStored,
    Stored,
    TakeSnapshot,
    TruncateLog,
    VotersChanged,
)
from log_broker.core.raft.log import Entry, Snapshot
from log_broker.core.raft.machine import Machine
from log_broker.core.raft.messages import RaftRequest, RaftResponse
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.voters import VoterSet


class RaftStore(Protocol):
    """The disk of one replica; each method returns when its work is durable (`storage.quorum_store`)."""

    def save_state(self, state: QuorumState) -> None: ...

    def append(self, base_offset: int, entries: Sequence[Entry]) -> None: ...

    def truncate(self, end_offset: int) -> None: ...

    def save_snapshot(self, snapshot: Snapshot) -> None: ...

    def install_snapshot(self, snapshot: Snapshot) -> None: ...

    def drop_prefix(self, start_offset: int) -> None: ...


class StateMachine(Protocol):
    """What the committed entries are for; and who proposed them learns here what became of that."""

    def apply(self, base_offset: int, entries: Sequence[Entry]) -> None:
        """Take in entries, of which those that are not DATA only fill their offset."""
        ...

    def snapshot(self) -> bytes:
        """Return all that was applied so far."""
        ...

    def load(self, data: bytes, end_offset: int) -> None:
        """Replace everything by what a snapshot holds, which ends before `end_offset`."""
        ...

    def proposed(self, result: Proposed) -> None: ...

    def voters_changed(self, result: VotersChanged) -> None: ...

    def leadership(self, change: LeadershipBegan | LeadershipEnded) -> None: ...


class Surroundings(Protocol):
    """What asyncio or the simulator offers to a machine's driver."""

    def now_ms(self) -> int:
        """Return this process's monotonic time."""
        ...

    def wake_at(self, deadline_ms: int | None) -> None:
        """Have `tick` of the driver called then, instead of whenever was asked for before."""
        ...

    def store(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """
        Have the disk do `job` behind those before it, then call `done`, on the thread of the machine.

        If the job raises, the process must end: what is on the disk is no longer known.
        """
        ...

    def send_request(self, to: int, request_id: int, body: RaftRequest) -> None: ...

    def send_response(self, token: Any, body: RaftResponse) -> None: ...


class RaftDriver:
    """Runs one Raft machine."""

    def __init__(self, raft: Raft, store: RaftStore, above: StateMachine, around: Surroundings) -> None:
        self.raft = raft
        self._machine: Machine[Event, Effect] = raft
        self._store = store
        self._above = above
        self._around = around
        self._queue: deque[Effect] = deque()
        self._saving = False

    def start(self) -> None:
        """Give the state machine what was recovered and begin."""
        snapshot = self.raft.replica.snapshot
        if snapshot is not None:
            self._above.load(snapshot.data, snapshot.id.offset)
        self.tick()

    def handle(self, event: Event) -> None:
        """Hand an event to the machine and do what it asks."""
        self._run(self._machine.handle(event, self._around.now_ms()))

    def tick(self) -> None:
        """Let the machine do what is due."""
        self._run(self._machine.tick(self._around.now_ms()))

    def _run(self, effects: Sequence[Effect]) -> None:
        self._around.wake_at(self._machine.next_deadline_ms())
        self._queue += effects
        self._drain()

    def _drain(self) -> None:
        queue = self._queue
        while queue and not self._saving:
            self._carry_out(queue.popleft())

    def _saved(self) -> None:
        self._saving = False
        self._drain()

    def _carry_out(self, effect: Effect) -> None:
        store = self._store
        around = self._around
        match effect:
            case SendRequest(to, request_id, request):
                around.send_request(to, request_id, request)
            case SendResponse(token, response):
                around.send_response(token, response)
            case AppendEntries(number, base_offset, entries):
                around.store(lambda: store.append(base_offset, entries), lambda: self.handle(Stored(number)))
            case Committed(base_offset, entries):
                self._above.apply(base_offset, entries)
            case Proposed():
                self._above.proposed(effect)
            case SaveQuorumState(state):
                self._saving = True
                around.store(lambda: store.save_state(state), self._saved)
            case VotersChanged():
                self._above.voters_changed(effect)
            case LeadershipBegan() | LeadershipEnded():
                self._above.leadership(effect)
            case _:
                self._carry_out_rarer(effect)

    def _carry_out_rarer(self, effect: TruncateLog | InstallSnapshot | TakeSnapshot | DropLogPrefix) -> None:
        store = self._store
        around = self._around
        match effect:
            case TruncateLog(end_offset):
                around.store(lambda: store.truncate(end_offset), _nothing)
            case InstallSnapshot(number, snapshot):
                self._above.load(snapshot.data, snapshot.id.offset)
                around.store(lambda: store.install_snapshot(snapshot), lambda: self.handle(Stored(number)))
            case TakeSnapshot(snapshot_id, voters):
                taken = Snapshot(id=snapshot_id, voters=VoterSet.decode(voters), data=self._above.snapshot())
                around.store(lambda: store.save_snapshot(taken), lambda: self.handle(SnapshotStored(taken)))
            case DropLogPrefix(start_offset):
                around.store(lambda: store.drop_prefix(start_offset), _nothing)


def _nothing() -> None:
    """A job that nobody waits for."""
