"""
One replica of the metadata quorum as a simulated process: the driver of production around a ledger of commands.

A command is `client:sequence`. The ledger takes each in once, in order, however often it is proposed: what a client
repeats because it got no answer must not count twice.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from zlib import crc32

from log_broker.core.raft.driver import RaftDriver
from log_broker.core.raft.effects import (
    AddVoter,
    Effect,
    LeadershipBegan,
    LeadershipEnded,
    Propose,
    Proposed,
    RemoveVoter,
    RequestReceived,
    Resign,
    ResponseReceived,
    VotersChanged,
)
from log_broker.core.raft.log import Entry, EntryKind
from log_broker.core.raft.messages import RaftRequest, RaftResponse
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.voters import ReplicaKey, Voter
from log_broker.errors import BrokerError, ErrorCode
from log_broker.sim.kernel.kernel import Action, InvariantError
from log_broker.sim.kernel.network import Message
from log_broker.sim.kernel.node import Node
from log_broker.sim.quorum.stranger import Foreign
from log_broker.storage.quorum_store import QuorumStore


class Command(NamedTuple):
    """A client's request to append."""

    client: int
    sequence: int


class Change(NamedTuple):
    """The operator's request to change the voters, or with neither to have the leader resign."""

    add: ReplicaKey | None = None
    remove: ReplicaKey | None = None
    lost_disks: int = 0  # that the operator knew of: one who did not know of the last may have asked for too much


class Outcome(NamedTuple):
    """The answer to both; `leader` is whom to ask instead, -1 if unknown."""

    error: ErrorCode
    leader: int = -1


class Ledger:
    """The state machine: the last sequence of each client, and a digest of everything taken in."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.digest = 0
        self.end_offset = 0

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.DATA:
                self._take(entry.data)
        self.end_offset += len(entries)

    def encode(self) -> bytes:
        return json.dumps([list(self.last.items()), self.digest]).encode()

    def load(self, data: bytes, end_offset: int) -> None:
        last, self.digest = json.loads(data)
        self.last = dict(last)
        self.end_offset = end_offset

    def _take(self, data: bytes) -> None:
        client, _, sequence = data.partition(b":")
        if int(sequence) == self.last.get(int(client), 0) + 1:
            self.last[int(client)] = int(sequence)
            self.digest = crc32(data, self.digest)


class Watcher(Protocol):
    """Who looks on as a replica does what it does."""

    lost_disks: int

    def before(self, process: "QuorumProcess", effect: Effect) -> None: ...

    def applied(self, process: "QuorumProcess", base_offset: int, entries: Sequence[Entry]) -> None: ...

    def loaded(self, process: "QuorumProcess") -> None: ...

    def stored(self, process: "QuorumProcess", end_offset: int) -> None: ...


class WatchedDriver(RaftDriver):
    """The driver of production, overlooked."""

    watcher: Watcher
    process: "QuorumProcess"

    def _carry_out(self, effect: Effect) -> None:
        self.watcher.before(self.process, effect)
        super()._carry_out(effect)


class QuorumProcess:
    """A process of one node; it surrounds its driver with the node's clock, disk and network."""

    driver: RaftDriver

    def __init__(self, node: Node, key: ReplicaKey, files: QuorumStore, watcher: Watcher) -> None:
        self.node = node
        self.key = key
        self._files = files
        self.ledger = Ledger()
        self.leads_since: int | None = None  # the epoch in which it may propose
        self._watcher = watcher

    @property
    def raft(self) -> Raft:
        return self.driver.raft

    def start(self) -> None:
        self.driver.start()

    def tick(self) -> None:
        self.driver.tick()

    def receive(self, message: Message) -> None:
        match message.body:
            case Command():
                self._command(message)
            case Change():
                self._change(message)
            case Foreign():
                self._foreign(message)
            case _ if message.is_answer:
                self.driver.handle(ResponseReceived(message.id, message.body))
            case _:
                self.driver.handle(RequestReceived(message, message.body))

    # What the driver asks of its state machine

    def apply(self, base_offset: int, entries: Sequence[Entry]) -> None:
        self.ledger.apply(entries)
        self._watcher.applied(self, base_offset, entries)

    def snapshot(self) -> bytes:
        return self.ledger.encode()

    def load(self, data: bytes, end_offset: int) -> None:
        self.ledger.load(data, end_offset)
        self._watcher.loaded(self)

    def proposed(self, result: Proposed) -> None:
        self.node.answer(result.token, Outcome(result.error, self._leader()))

    def voters_changed(self, result: VotersChanged) -> None:
        self.node.answer(result.token, Outcome(result.error, self._leader()))

    def leadership(self, change: LeadershipBegan | LeadershipEnded) -> None:
        self.leads_since = change.epoch if isinstance(change, LeadershipBegan) else None
        self.node.kernel.trace(self.node.name, f"{type(change).__name__} {change.epoch}")

    # What it asks of its surroundings

    def now_ms(self) -> int:
        return self.node.now_ms()

    def wake_at(self, deadline_ms: int | None) -> None:
        self.node.wake_at(deadline_ms)

    def store(self, job: Action, done: Action) -> None:
        def watched() -> None:
            self._watcher.stored(self, self._files.end_offset)
            done()

        self.node.store(job, watched)

    def send_request(self, to: int, request_id: int, body: RaftRequest) -> None:
        self.node.send_request(to, request_id, body)

    def send_response(self, token: Message, body: RaftResponse) -> None:
        self.node.answer(token, body)

    # What clients ask

    def _leader(self) -> int:
        leader_id = self.raft.leader_id
        return -1 if leader_id is None else leader_id

    def _foreign(self, message: Message) -> None:
        try:
            body = message.body.read()
        except BrokerError:
            return
        if body is None:
            return
        before = self.raft.replica.epoch
        hears_leader = not self.raft.role.grants_pre_vote()
        self.driver.handle(RequestReceived(message._replace(body=body), body))
        if hears_leader and self.raft.replica.epoch != before:
            raise InvariantError("a stranger ends no epoch", f"{self.key} had a leader, and goes on from {before}")

    def _command(self, message: Message) -> None:
        command: Command = message.body
        if self.leads_since is None:
            self.node.answer(message, Outcome(ErrorCode.NOT_CONTROLLER, self._leader()))
        elif command.sequence <= self.ledger.last.get(command.client, 0):
            self.node.answer(message, Outcome(ErrorCode.NONE))
        else:
            data = b"%d:%d" % command
            self.driver.handle(Propose(self.leads_since, (data,), message))

    def _change(self, message: Message) -> None:
        change: Change = message.body
        if change.lost_disks != self._watcher.lost_disks:
            self.node.answer(message, Outcome(ErrorCode.INVALID_REQUEST))
        elif change.add is not None:
            self.driver.handle(AddVoter(Voter(key=change.add), message))
        elif change.remove is not None:
            self.driver.handle(RemoveVoter(change.remove, message))
        else:
            self.driver.handle(Resign())
