"""
What must hold of logs on disks that lose power: no holes, no claim beyond what is synced, no other topic's records.
"""

from uuid import UUID

from log_broker.records.batch import batches_in
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.sim.world.broker_process import BrokerMachine

READ_BYTES = 1 << 20
BODY_FROM = 21  # behind what a broker writes into a batch: its offsets, its epoch and the checksum


class DiskChecks:
    """The invariants of each replica on its disk."""

    def __init__(self) -> None:
        self._topic_of: dict[bytes, UUID] = {}  # the body of a batch -> the topic in which it was first seen

    def begun(self, name: str, runtime: PartitionRuntime) -> None:
        """Check a log that was opened: its offsets follow each other, as nothing is compacted here."""
        offset, end = runtime.log_start_offset, runtime.log_end_offset
        while offset < end:
            found = [header for _, header in batches_in(self._read(name, runtime, offset, end))]
            for header in found:
                if header.base_offset > offset:
                    break
                offset = header.last_offset + 1
            if not found or found[0].base_offset > offset:
                raise InvariantError("a log has no holes", f"{name} {_title(runtime)} has nothing at {offset} of {end}")

    def after(self, machine: BrokerMachine, runtime: PartitionRuntime, synced_before: int) -> int:
        """Check a log that has changed, `synced_before` being its recovery point before; return the one it has."""
        if runtime.log_start_offset > 0:
            raise InvariantError(
                "nothing is deleted before its time",
                f"{machine.name} has let go of {_title(runtime)} up to {runtime.log_start_offset}",
            )
        log, recovery_point = runtime.replica.log, runtime.recovery_point
        ends = [segment.base_offset for segment in log.segments[1:]] + [log.end_offset]
        for segment, end in zip(log.segments, ends, strict=True):
            if not synced_before < end <= recovery_point or not segment.size:
                continue
            if not machine.disk.files.is_on_disk(segment.path(), segment.size):
                raise InvariantError(
                    "what lies before the recovery point is on the disk",
                    f"{machine.name} {_title(runtime)}: {recovery_point} passes {segment.base_offset} … {end - 1}",
                )
        return recovery_point

    def renewed(self, name: str, runtime: PartitionRuntime, start: int) -> int:
        """Check that the records from `start` on were never another topic's; return where they end."""
        offset, end = start, runtime.log_end_offset
        while offset < end:
            data = self._read(name, runtime, offset, end)
            for position, header in batches_in(data):
                body = data[position + BODY_FROM : position + header.size]
                topic_id = self._topic_of.setdefault(body, runtime.topic_id)
                if topic_id != runtime.topic_id:
                    raise InvariantError(
                        "a topic shows its own records",
                        f"{name} shows those of {topic_id} at {header.base_offset} of {_title(runtime)} "
                        f"{runtime.topic_id}",
                    )
                offset = header.last_offset + 1
        return end

    def _read(self, name: str, runtime: PartitionRuntime, offset: int, end: int) -> bytes:
        try:
            data = runtime.replica.log.read(offset, READ_BYTES, end, at_least_one=True)
        except OSError as error:
            raise InvariantError("a log has no holes", f"{name} {_title(runtime)}: {error}") from error
        if not data:
            raise InvariantError("a log has no holes", f"{name} {_title(runtime)} has nothing at {offset} of {end}")
        return data


def _title(runtime: PartitionRuntime) -> str:
    return f"{runtime.topic}-{runtime.partition}"
