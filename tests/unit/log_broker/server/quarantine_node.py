"""What tests of quarantines share: a registry, batches, and what is in a log."""

from typing import Any

from log_broker.interfaces import Contract, Skip, Violation
from log_broker.records import Record, build_batch, iterate_records
from log_broker.records.batch import batches_in
from log_broker.server.node import Node
from log_broker.server.partitions.readers import READ_COMMITTED

HEADER = "fluvial.quarantine."


class NoBad:
    """A registry by which values must not begin with `bad`; `strict` may change, as a registry does."""

    keyless: Violation | None = None

    def __init__(self) -> None:
        self.accepted: dict[bytes, Skip | None] = {}
        self.strict = True

    def check_of(self, contract: Contract) -> "NoBad":
        return self

    def violation(self, datum: bytes | None) -> Violation | None:
        if datum is None or (self.strict and datum.startswith(b"bad")):
            return Violation("this one is bad", "flight.tail")
        return None


def batch_of(*values: bytes | None, producer: tuple[int, int, int] = (-1, -1, -1), **fields: Any) -> bytes:
    records = [(1000 + at, b"k%d" % at, value, (("own", b"%d" % at),)) for at, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    return bytes(build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields))


def stored(node: Node, topic: str, *, partition: int = 0, committed: bool = False) -> list[Record]:
    runtime = node.logs.get(topic, partition)
    if runtime is None:
        return []
    found: list[Record] = []
    offset = runtime.log_start_offset
    aborting: set[int] = set()
    while offset < runtime.high_watermark:
        result = runtime.read(offset, 1 << 20, isolation_level=READ_COMMITTED if committed else 0)
        data = b"".join(result.chunks)
        if not data:
            break
        for at, header in batches_in(data):
            offset = header.last_offset + 1
            aborting |= {producer_id for producer_id, first in result.aborted or () if first == header.base_offset}
            if header.is_control:
                aborting.discard(header.producer_id)
            elif header.producer_id not in aborting:
                found += iterate_records(data[at : at + header.size])
    return found


def told(record: Record) -> dict[str, str]:
    return {
        name.removeprefix(HEADER): content.decode()
        for name, content in record.headers
        if name.startswith(HEADER) and content is not None
    }
