"""
What a Fetch finds in the partitions that it asks for: records, offsets, or why it is to ask elsewhere.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

from log_broker.core.fetch.session import FetchedPartition, FetchedTopic
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import ErrorCode
from log_broker.records.batch import batches_in
from log_broker.records.stored import read_all
from log_broker.server.net.ports import HasMemory
from log_broker.server.partitions.current_leader import WRONG_LEADER, current_leader
from log_broker.server.partitions.fetch_answers import Found, elsewhere
from log_broker.server.partitions.ports import Partitions
from log_broker.server.partitions.readers import READ_COMMITTED
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.replication.preferred_replica import NO_REPLICA, preferred_replica
from log_broker.storage.cold_reads import ColdPart
from log_broker.wire.fetch import TOPIC_IDS_FROM, FetchRequest, PartitionData

FROM_FOLLOWERS = 11  # clients of this version know what a follower may answer


class ReaderHost(Cluster, HasMemory, Partitions, Process, Protocol):
    """What reading partitions asks of the node."""


class FetchReader:
    """
    Reads for one request, and holds what its last look has found.

    `found` has the topics with what stands of each partition in the answer, `size` the bytes of records in that.
    `watched` are the partitions of which more may come, in the order in which they were asked for: their position is
    what they are called by. `counted` says how many bytes there are in each of them that has any. `cold` is what has to
    be loaded from the disk first: then nothing else of what was found holds.
    """

    __slots__ = (
        "_node",
        "_rack",
        "_request",
        "_rights",
        "_unread",
        "_version",
        "cold",
        "counted",
        "found",
        "is_all_idle",
        "is_committed",
        "is_urgent",
        "leaders",
        "size",
        "watched",
    )

    def __init__(self, node: ReaderHost, request: FetchRequest, version: int, rights: Rights | None) -> None:
        self._node = node
        self._request = request
        self._version = version
        self._rights = rights
        # With a selector the leader sends clients that say where they are to a replica near them.
        self._rack = request.rack if node.config.replica_selector_class else b""
        self.is_committed = request.isolation_level == READ_COMMITTED
        self._unread = False  # what is found is left where it is stored
        self.cold: list[ColdPart] = []
        self.found: list[tuple[bytes, Found]]
        self.watched: list[tuple[PartitionRuntime, FetchedPartition]]
        self.counted: dict[int, int]
        self.size: int
        self.leaders: list[tuple[int, int] | None] = []  # who is to be asked instead
        self.is_urgent: bool  # an error or another replica, which a client is told at once
        self.is_all_idle: bool  # nothing had to be read

    def room(self) -> int:
        """How many bytes of records an answer may have now."""
        memory = self._node.memory
        return min(max(self._request.bytes_max, 0), self._node.config.fetch_max_bytes, memory.answer_bytes_max)

    def look(
        self, topics: Sequence[FetchedTopic], room: int, slice_partitions: int, *, may_load: bool, unread: bool
    ) -> Generator[None, None, None]:
        """
        Read all partitions, of `room` bytes at the most, with a pause after each slice.

        With `may_load` nothing is read from the disk: see `cold`. With `unread` what is found and need not be looked at
        is left where it is stored, which is good for this turn of the loop.
        """
        self.leaders.clear()
        self.cold.clear()
        self._unread = unread and may_load and sum(1 + len(each.partitions) for each in topics) <= slice_partitions
        self.is_urgent, self.is_all_idle = False, True
        self.found, self.watched, self.counted = [], [], {}
        watched, total, left = self.watched, 0, slice_partitions
        find = self._node.logs.get
        committed, may_be_idle = self.is_committed, not self._rack
        for topic in topics:
            name = self._name_of(topic.name)
            if name is not None and not self._may_read(name):
                self.is_urgent, self.is_all_idle = True, False
                self.found.append((topic.name, [_refused(asked) for asked in topic.partitions]))
                continue
            partitions: Found = []
            for asked in topic.partitions:
                if not left:
                    yield
                    left = slice_partitions
                left -= 1
                runtime = None if name is None else find(name, asked[0])
                if runtime is not None and may_be_idle and runtime.is_read_up_to(asked[2], asked[1], committed):
                    watched.append((runtime, asked))
                    partitions.append(runtime)
                    continue
                self.is_all_idle = False
                if may_load and runtime is not None:
                    room -= self._look_for_cold(runtime, asked, room)
                    if self.cold:
                        if room <= 0:
                            return
                        continue
                data, size = self._read(name, runtime, asked, room, first=total == 0)
                if size:
                    self.counted[len(watched)] = size
                    total += size
                    room = max(room - size, 0)
                if data.error is not ErrorCode.NONE or data.preferred_replica >= 0:
                    self.is_urgent = True
                elif runtime is not None:
                    watched.append((runtime, asked))
                partitions.append(data)
            self.found.append((topic.name, partitions))
        self.size = total

    def _look_for_cold(self, runtime: PartitionRuntime, asked: FetchedPartition, room: int) -> int:
        """Take note of what reading a partition would wait for; return how many bytes that are."""
        if not runtime.is_leader and self._version < FROM_FOLLOWERS:
            return 0
        size = min(max(asked.bytes_max, 0), max(room, 0))
        part = runtime.cold_part(asked.offset, size)
        if part is None:
            return 0
        self.cold.append(part)
        return max(size, 1)

    def read_again(
        self,
        watched: Sequence[tuple[PartitionRuntime, FetchedPartition]],
        changed: Sequence[int],
        room: int,
        *,
        unread: bool,
    ) -> Found:
        """Read those of `watched` that have changed; of the others it is known that there is nothing to read."""
        self._unread = unread
        found: Found = [runtime for runtime, _ in watched]
        total = 0
        for at in changed:
            runtime, asked = watched[at]
            found[at], size = self._read(runtime.topic, runtime, asked, room, first=total == 0)
            total += size
            room = max(room - size, 0)
        return found

    def is_cut_short(self, topics: Sequence[FetchedTopic]) -> bool:
        """
        Whether more could be read now but for the limits, which fall between batches: waiting would bring nothing.

        Asked only of a response that is smaller than its reader wants.
        """
        for topic, (_, found) in zip(topics, self.found, strict=True):
            for asked, data in zip(topic.partitions, found, strict=True):
                if not isinstance(data, PartitionData):
                    continue
                position = asked.offset
                for chunk in read_all(data.records):
                    for _, header in batches_in(chunk):
                        position = header.last_offset + 1
                if position < (data.last_stable_offset if self.is_committed else data.high_watermark):
                    return True
        return False

    def _may_read(self, topic: str) -> bool:
        return self._rights is None or self._rights.may(Operation.READ, ResourceType.TOPIC, topic)

    def _name_of(self, given: bytes) -> str | None:
        """Return the name of a topic that the request names or gives the id of; None for an unknown id."""
        if self._version < TOPIC_IDS_FROM:
            return given.decode(errors="replace")
        return self._node.cluster.names.get(given.hex())

    def _other_replica(self, runtime: PartitionRuntime, asked: FetchedPartition) -> tuple[ErrorCode, int]:
        """
        Say why a follower cannot serve this, or from a leader which other replica the client is to read from (KIP-392).
        """
        if runtime.is_leader:
            return ErrorCode.NONE, preferred_replica(self._node, runtime, self._rack, asked.offset)
        if self._version < FROM_FOLLOWERS:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, NO_REPLICA
        # What lies behind the end of its log this replica cannot call out of range: the leader may have it.
        behind = asked.offset > runtime.log_end_offset
        return ErrorCode.OFFSET_NOT_AVAILABLE if behind else ErrorCode.NONE, NO_REPLICA

    def _read(
        self, topic: str | None, runtime: PartitionRuntime | None, asked: FetchedPartition, room: int, *, first: bool
    ) -> tuple[PartitionData, int]:
        if topic is None:
            return PartitionData(asked.partition, ErrorCode.UNKNOWN_TOPIC_ID, -1, -1, -1, ()), 0
        if runtime is None:
            error = self._node.absence_of(topic, asked.partition)
        else:
            error = runtime.check_leader_epoch(asked.leader_epoch)
            if not error and (self._rack or not runtime.is_leader):
                error, preferred = self._other_replica(runtime, asked)
                if preferred != NO_REPLICA:
                    return elsewhere(runtime, asked, preferred), 0
        if runtime is None or error is not ErrorCode.NONE:
            data = PartitionData(asked.partition, error, -1, -1, -1, ())
            if error in WRONG_LEADER:
                leader = current_leader(self._node, topic, asked.partition)
                data = data._replace(leader=leader)
                self.leaders.append(leader)
            return data, 0
        result = runtime.read(
            asked.offset,
            min(max(asked.bytes_max, 0), room),
            isolation_level=self._request.isolation_level,
            min_one=first,
            unread=self._unread,
        )
        if result.error is not ErrorCode.NONE:
            return PartitionData(asked.partition, result.error, -1, -1, -1, ()), 0
        data = PartitionData(
            asked.partition,
            ErrorCode.NONE,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
            result.chunks if result.stored is None else (result.stored,),
            result.aborted,
        )
        return data, result.size


def _refused(asked: FetchedPartition) -> PartitionData:
    return PartitionData(asked.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1, ())
