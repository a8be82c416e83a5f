"""
Somebody who belongs to no cluster and sends the metadata quorum's messages, in Kafka's bytes as a broker reads them.

It knows the cluster's id, its nodes and their epochs, as anybody can find out who may ask. What only a voter can know
it does not pretend: it acknowledges nothing in a voter's name in the epoch of the day, as no node could tell that from
the truth. The epochs that it names are those next to the real one, those about the bound, and the ends of the type.
"""

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from log_broker.core.raft.log import OffsetAndEpoch
from log_broker.core.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    VoteRequest,
)
from log_broker.core.raft.voters import ReplicaKey
from log_broker.sim.kernel.network import Message
from log_broker.wire.control import read_request, write_request
from log_broker.wire.framing import read_header
from log_broker.wire.quorum import is_of_cluster, question, read_question

if TYPE_CHECKING:
    from log_broker.sim.quorum.world import QuorumWorld

CLUSTER_ID = "the-cluster-that-is-here"
STRANGER_ADDRESS = 300
_NAME = "stranger"
_UNKNOWN_NODE = 99
_ENDPOINT = ("stranger.example", 9092)
_FIRST_US = 400_000
_PAUSE_US = (5_000, 250_000)
_FIRST, _LAST = -(2**31), 2**31 - 1
_OFFSETS = (-(2**63), -1, 0, 1, 40, 2**31, 2**63 - 1)


class Foreign(NamedTuple):
    """A request that came from nobody's replica, as the bytes behind a frame's length."""

    frame: bytes

    def read(self) -> RaftRequest | None:
        """Read it as a broker does; raises BrokerError, and returns None for one of another cluster."""
        header, body = read_header(memoryview(bytearray(self.frame)))
        request = read_request(header.api_key, header.api_version, body)
        if not is_of_cluster(header.api_key, request.cluster_id, CLUSTER_ID):
            return None
        return read_question(header.api_key, request)


def directory_of(address: int, lost_disks: int) -> str:
    """Name a data directory: 32 hex digits, as on the wire."""
    return UUID(int=address << 64 | lost_disks).hex


class Stranger:
    """Sends one message after the other until all is healed."""

    def __init__(self, world: "QuorumWorld") -> None:
        self._world = world
        self._random = world.kernel.stream(_NAME)
        world.network.attach(STRANGER_ADDRESS, lambda _: None)
        world.kernel.after(_FIRST_US, self._act)

    def _act(self) -> None:
        world, chance = self._world, self._random
        if world.is_calm:
            return
        target = chance.choice(list(world.nodes))
        asked = question(
            self._body(world.keys[target]),
            cluster_id=chance.choice((CLUSTER_ID, CLUSTER_ID, CLUSTER_ID, None, "another")),
            endpoint=_ENDPOINT,
        )
        frame = Foreign(bytes(write_request(asked.api, asked.version, 1, _NAME, asked.values)))
        world.kernel.trace(_NAME, f"▶ n{target} {asked.api.name} {asked.values['cluster_id']}")
        world.network.send(Message(STRANGER_ADDRESS, target, False, 0, 0, frame))
        world.kernel.after(chance.randint(*_PAUSE_US), self._act)

    def _body(self, voter: ReplicaKey) -> RaftRequest:
        """Make a message up; `voter` is whom it goes to, and is mostly named right."""
        chance = self._random
        sender = self._sender()
        epoch = self._epoch()
        if chance.random() < 0.1:
            voter = self._sender()
        kind = chance.randrange(5)
        if kind == 0:
            end = OffsetAndEpoch(chance.choice(_OFFSETS), max(chance.choice((epoch - 1, self._epoch())), _FIRST))
            pre_vote = chance.random() < 0.3
            return VoteRequest(epoch=epoch, candidate=sender, voter=voter, log_end=end, pre_vote=pre_vote)
        if kind == 1:
            return BeginQuorumEpochRequest(epoch=epoch, leader_id=sender.node_id, voter=voter)
        if kind == 2:
            successors = tuple(self._world.keys.values())[: chance.randint(0, 3)]
            return EndQuorumEpochRequest(epoch=epoch, leader_id=sender.node_id, preferred_successors=successors)
        if abs(epoch - self._epoch_of_the_day()) < 1_000:  # it may come to be the right one on the way
            sender = ReplicaKey(sender.node_id, directory_of(_UNKNOWN_NODE, 0))
        end = OffsetAndEpoch(chance.choice(_OFFSETS), chance.choice((epoch, self._epoch())))
        if kind == 3:
            return FetchRequest(
                epoch=epoch,
                replica=sender,
                log_end=end,
                high_watermark=chance.choice(_OFFSETS),
                wait_ms=chance.choice((0, 500, _LAST)),
            )
        position = chance.choice(_OFFSETS)
        return FetchSnapshotRequest(epoch=epoch, replica=sender, snapshot_id=end, position=position)

    def _sender(self) -> ReplicaKey:
        chance = self._random
        known = list(self._world.keys.values())
        odd = ReplicaKey(chance.choice((-(2**31), -1, _UNKNOWN_NODE, _LAST)), directory_of(_UNKNOWN_NODE, 1))
        return odd if chance.random() < 0.2 else chance.choice(known)

    def _epoch_of_the_day(self) -> int:
        up = (process for address in self._world.nodes if (process := self._world.process(address)) is not None)
        return max((process.raft.replica.epoch for process in up), default=0)

    def _epoch(self) -> int:
        chance = self._random
        now, bound = self._epoch_of_the_day(), self._world.epoch_max()
        if chance.random() < 0.6:
            return min(now + chance.choice((-1, 0, 0, 1, 1, 2, 5)), _LAST)
        if chance.random() < 0.05:
            return bound + chance.choice((-1_000, -1, 0))
        return chance.choice((_FIRST, -1, 0, bound + 60, bound + 2**20, _LAST - 2, _LAST - 1, _LAST))
