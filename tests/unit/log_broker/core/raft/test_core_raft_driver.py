"""The driver of a Raft machine: effects in order, and none past a promise that is not on the disk."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from log_broker.core.raft.driver import RaftDriver
from log_broker.core.raft.effects import (
    LeadershipBegan,
    LeadershipEnded,
    Propose,
    Proposed,
    QuorumState,
    RequestReceived,
    VotersChanged,
)
from log_broker.core.raft.log import Entry, OffsetAndEpoch, Snapshot
from log_broker.core.raft.messages import VoteRequest
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import RaftConfig, Recovered
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.errors import ErrorCode

ME, OTHER = ReplicaKey(1, "a"), ReplicaKey(2, "b")


class Everything:
    """Disk, clock, network and state machine in one; `work` has the disk do a job, and `log` says what happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = 0
        self.deadline: int | None = None
        self.jobs: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self.content = b""

    def now_ms(self) -> int:
        return self.now

    def wake_at(self, deadline_ms: int | None) -> None:
        self.deadline = deadline_ms

    def store(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self.jobs.append((job, done))

    def work(self) -> None:
        job, done = self.jobs.popleft()
        job()
        done()

    def send_request(self, to: int, request_id: int, body: Any) -> None:
        self.log.append(f"{type(body).__name__} to {to}")

    def send_response(self, token: Any, body: Any) -> None:
        self.log.append(f"{type(body).__name__} for {token}")

    def save_state(self, state: QuorumState) -> None:
        self.log.append(f"saved epoch {state.epoch}")

    def append(self, base_offset: int, entries: Sequence[Entry]) -> None:
        self.log.append(f"appended {len(entries)} at {base_offset}")

    def truncate(self, end_offset: int) -> None:
        self.log.append(f"truncated to {end_offset}")

    def save_snapshot(self, snapshot: Snapshot) -> None:
        self.log.append(f"snapshot {snapshot.id.offset} of {snapshot.data!r}")

    def install_snapshot(self, snapshot: Snapshot) -> None:
        self.log.append(f"installed {snapshot.id.offset}")

    def drop_prefix(self, start_offset: int) -> None:
        self.log.append(f"dropped to {start_offset}")

    def apply(self, base_offset: int, entries: Sequence[Entry]) -> None:
        self.content += b"".join(entry.data for entry in entries if not entry.kind)
        self.log.append(f"applied {len(entries)} at {base_offset}")

    def snapshot(self) -> bytes:
        return self.content

    def load(self, data: bytes, end_offset: int) -> None:
        self.log.append(f"loaded {data!r} up to {end_offset}")

    def proposed(self, result: Proposed) -> None:
        self.log.append(f"proposed {result.token}: {result.error.name}")

    def voters_changed(self, result: VotersChanged) -> None:
        self.log.append(f"voters {result.token}: {result.error.name}")

    def leadership(self, change: LeadershipBegan | LeadershipEnded) -> None:
        self.log.append(type(change).__name__)


def a_driver(*voters: ReplicaKey, recovered: Recovered | None = None) -> tuple[RaftDriver, Everything]:
    world = Everything()
    raft = Raft(
        ME,
        RaftConfig(snapshot_entries=3, snapshot_trailing_entries=0),
        bootstrap=VoterSet(Voter(key=key) for key in voters),
        recovered=recovered or Recovered(),
        jitter=lambda bound: 0,
        now_ms=0,
    )
    driver = RaftDriver(raft, world, world, world)
    driver.start()
    return driver, world


def pass_time(driver: RaftDriver, world: Everything) -> None:
    assert world.deadline is not None
    world.now = max(world.now, world.deadline)
    driver.tick()


def test_a_vote_is_sent_when_it_is_on_the_disk_and_not_before() -> None:
    driver, world = a_driver(ME, OTHER)
    world.log.clear()
    request = VoteRequest(epoch=1, candidate=OTHER, voter=ME, log_end=OffsetAndEpoch(0, 0), pre_vote=False)
    driver.handle(RequestReceived("the vote", request))
    pre_vote = VoteRequest(epoch=1, candidate=OTHER, voter=ME, log_end=OffsetAndEpoch(0, 0), pre_vote=True)
    driver.handle(RequestReceived("another question", pre_vote))
    assert world.log == []
    while world.jobs:
        world.work()
    assert world.log == [
        "saved epoch 1",
        "VoteResponse for the vote",
        "VoteResponse for another question",
    ]


def test_a_sole_voter_goes_from_election_to_snapshot() -> None:
    driver, world = a_driver(ME)
    while not driver.raft.role.leads:
        pass_time(driver, world)
    while world.jobs:
        world.work()
    world.log.clear()
    driver.handle(Propose(1, (b"x", b"y"), "t"))
    assert world.log == []
    while world.jobs:
        world.work()
    assert world.log == [
        "appended 2 at 1",
        "applied 2 at 1",
        "proposed t: NONE",
        "snapshot 3 of b'xy'",
        "dropped to 3",
    ]


def test_what_was_recovered_is_loaded_first() -> None:
    snapshot = Snapshot(id=OffsetAndEpoch(5, 2), voters=VoterSet([Voter(key=ME)]), data=b"all")
    state = QuorumState(epoch=2)
    _, world = a_driver(ME, OTHER, recovered=Recovered(state=state, snapshot=snapshot, log_start=snapshot.id))
    assert world.log[0] == "loaded b'all' up to 5"


def test_a_refusal_reaches_who_proposed() -> None:
    driver, world = a_driver(ME, OTHER)
    driver.handle(Propose(1, (b"x",), "t"))
    assert world.log[-1] == f"proposed t: {ErrorCode.NOT_CONTROLLER.name}"
