"""
What clients were told and what is committed, and the promises that stand between the two.

The committed log of a partition is what any replica has ever called committed, batch by batch. It is written down once
and compared with whatever is called committed later, wherever that is.
"""

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import NamedTuple

from log_broker.errors import ErrorCode
from log_broker.records.batch import TRANSACTIONAL, BatchHeader, batches_in
from log_broker.records.control import read_marker
from log_broker.records.record import Record, iterate_records
from log_broker.sim.clients.client_link import TopicPartition
from log_broker.sim.kernel.kernel import InvariantError

READ_COMMITTED = 1


class RecordId(NamedTuple):
    """Which record: `number` counts those of one writer in one partition."""

    writer: str
    number: int


class Written(NamedTuple):
    """Records of one batch, by number."""

    writer: str
    first: int
    records: int


class CommittedBatch(NamedTuple):
    """`data` is the whole batch."""

    base_offset: int
    last_offset: int
    data: bytes


class Batch(NamedTuple):
    """What is in a committed batch, for whoever reads it."""

    header: BatchHeader
    ids: tuple[RecordId, ...]


class CommittedLog:
    """All of one partition that is committed."""

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.end_offset = 0
        self.batches: dict[int, CommittedBatch] = {}
        self.contents: dict[int, Batch] = {}
        self.offsets: dict[RecordId, int] = {}
        self.lost: dict[RecordId, str] = {}  # committed once, and gone by what the cluster said it would do
        self.cut_epoch = (
            -1
        )  # of the last leader that may lack what was committed: what older ones commit counts no more
        self.last_number: dict[str, int] = {}
        # Producer id -> first offset of its open transaction, and what became of those that are not open.
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int, int, bool]] = []  # producer id, first offset, offset of the marker, committed

    def cut(self, end_offset: int, leader_epoch: int, why: str) -> None:
        """Take note that what lies behind `end_offset` is gone and may be, since somebody leads who lacks it."""
        self.cut_epoch = leader_epoch
        for base in [base for base, batch in self.batches.items() if batch.last_offset >= end_offset]:
            del self.batches[base]
            for identity in self.contents.pop(base).ids:
                self.lost[identity] = why
                self.offsets.pop(identity, None)
        self.ended = [each for each in self.ended if each[2] < end_offset]
        self.open = {}
        self.end_offset = min(self.end_offset, end_offset)
        self.last_number = {}
        for base in sorted(self.contents):
            content = self.contents[base]
            for identity in content.ids:
                self.last_number[identity.writer] = identity.number


class History:
    """What all clients did, and what came of it."""

    def __init__(self, lossy: Container[str] = ()) -> None:
        """In topics that are `lossy` what was committed may be lost; that is to be told."""
        self.lossy = lossy
        self.logs: dict[TopicPartition, CommittedLog] = {}
        self.idempotent: set[str] = set()
        self.acknowledged_count = 0
        self.acked: dict[TopicPartition, dict[RecordId, int]] = defaultdict(dict)  # with which acks
        # Group and partition -> offsets that somebody asked to commit; the largest that a client was told is committed.
        self.asked: dict[tuple[str, TopicPartition], set[int]] = defaultdict(set)
        self.commits: dict[tuple[str, TopicPartition], int] = {}
        self.promised_ends: dict[tuple[str, int], bool] = {}  # transaction -> how its producer was told it ended
        # At which offset, for acks=1 and where acks=all may lose as well.
        self.acked_at: dict[TopicPartition, dict[RecordId, int]] = defaultdict(dict)
        self.reported: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(
            list
        )  # ranges that brokers said are lost
        self.without_power: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(
            list
        )  # those that power cuts took
        self.written: dict[
            tuple[TopicPartition, int, int], int
        ] = {}  # (partition, epoch, offset) -> checksum of what is there
        self.lost_alone = 0  # acknowledged by the leader alone, gone, and said to be
        self.lost_committed = 0  # committed, gone by an unclean election or power cuts, and said to be

    def log(self, place: TopicPartition) -> CommittedLog:
        log = self.logs.get(place)
        if log is None:
            log = self.logs[place] = CommittedLog(place)
        return log

    # What the cluster calls committed

    def committed(self, who: str, place: TopicPartition, offset: int, data: bytes) -> None:
        """Take in, or compare, whole batches from `offset` on that a replica calls committed."""
        log = self.log(place)
        for position, header in batches_in(data):
            if header.last_offset < offset:
                continue
            batch = CommittedBatch(header.base_offset, header.last_offset, _batch(data, position, header))
            known = log.batches.get(header.base_offset)
            if known is not None:
                if known.data != batch.data:
                    raise InvariantError(
                        "committed prefixes are equal",
                        f"{who} has another batch committed at {place} {header.base_offset} than was committed there",
                    )
                continue
            if header.base_offset != log.end_offset:
                raise InvariantError(
                    "committed prefixes are equal",
                    f"{who} has a batch {header.base_offset}…{header.last_offset} committed in {place}, "
                    f"where {log.end_offset} comes next",
                )
            self._take_in(log, header, batch)

    def _take_in(self, log: CommittedLog, header: BatchHeader, batch: CommittedBatch) -> None:
        log.batches[batch.base_offset] = batch
        log.end_offset = batch.last_offset + 1
        ids: list[RecordId] = []
        if header.is_control:
            marker = read_marker(batch.data)
            first = log.open.pop(header.producer_id, None)
            if marker is not None and first is not None:
                log.ended.append((header.producer_id, first, batch.base_offset, marker.committed))
        else:
            if header.attributes & TRANSACTIONAL:
                log.open.setdefault(header.producer_id, batch.base_offset)
            ids = [identity for record in iterate_records(batch.data) if (identity := identify(record)) is not None]
        log.contents[batch.base_offset] = Batch(header, tuple(ids))
        for at, identity in enumerate(ids):
            if identity.writer in self.idempotent:
                self._check_order(log, identity, batch.base_offset + at)
            log.offsets.setdefault(identity, batch.base_offset + at)

    def _check_order(self, log: CommittedLog, identity: RecordId, offset: int) -> None:
        if identity in log.offsets:
            raise InvariantError(
                "no duplicates of idempotent records",
                f"{identity} is in {log.place} at {log.offsets[identity]} and at {offset}",
            )
        last = log.last_number.get(identity.writer, -1)
        if identity.number < last:
            raise InvariantError(
                "no reordering of idempotent records", f"{identity} follows {last} in {log.place} at {offset}"
            )
        log.last_number[identity.writer] = identity.number

    def cut(self, place: TopicPartition, end_offset: int, leader_epoch: int, why: str) -> None:
        """Take note that committed records are gone, as the cluster said they would be."""
        before = len(self.log(place).lost)
        self.log(place).cut(end_offset, leader_epoch, why)
        self.lost_committed += len(self.log(place).lost) - before

    # What clients did

    def acknowledged(self, place: TopicPartition, records: Written, *, acks: int, base_offset: int) -> None:
        """A producer was told that its records are in, from `base_offset` on."""
        writer, first, count = records
        self.acknowledged_count += count
        log = self.log(place)
        for at in range(count):
            identity = RecordId(writer, first + at)
            self.acked[place][identity] = acks
            is_lossy = place[0] in self.lossy
            if acks == 1 or (acks == -1 and is_lossy):
                self.acked_at[place][identity] = base_offset + at
            if acks != -1 or is_lossy:
                continue
            offset = log.offsets.get(identity)
            if offset is None:
                raise InvariantError(
                    "acknowledged is committed", f"{identity} is not committed in {place}, acks=all said it is"
                )
            if offset != base_offset + at and writer in self.idempotent:
                raise InvariantError(
                    "an acknowledgement names the offset", f"{identity} lies at {offset}, not at {base_offset + at}"
                )

    def refused(self, writer: str, place: TopicPartition, error: ErrorCode) -> None:
        raise InvariantError("nobody is refused without cause", f"{writer} was told {error.name} for {place}")

    def read(
        self,
        who: str,
        place: TopicPartition,
        offset: int,
        data: bytes,
        *,
        isolation_level: int,
        aborted: Iterable[tuple[int, int]],
    ) -> tuple[int, list[tuple[int, RecordId]]]:
        """
        Take in what a reader was given from `offset` on; return where it goes on and the records that it hands over.
        """
        log = self.log(place)
        next_offset = offset
        handed: list[tuple[int, RecordId]] = []
        left_out = Aborted(aborted)
        for position, header in batches_in(data):
            if header.last_offset < offset:
                continue
            known = log.batches.get(header.base_offset)
            if header.leader_epoch < log.cut_epoch and (known is None or known.data != _batch(data, position, header)):
                next_offset = header.last_offset + 1  # its leader does not know yet that another leads without this
                continue
            if known is None:
                raise InvariantError(
                    "readers see what is committed",
                    f"{who} read {place} {header.base_offset}, and the committed log ends at {log.end_offset}",
                )
            if known.data != _batch(data, position, header):
                raise InvariantError(
                    "readers see what is committed", f"{who} read another batch at {place} {header.base_offset}"
                )
            if header.base_offset > next_offset:
                raise InvariantError(
                    "readers skip nothing", f"{who} was given {header.base_offset} of {place} after {next_offset}"
                )
            next_offset = header.last_offset + 1
            skipped = left_out.skips(header)
            if isolation_level == READ_COMMITTED and not header.is_control and header.attributes & TRANSACTIONAL:
                self._check_isolation(who, log, header, skipped=skipped)
            if not skipped and not header.is_control:
                content = log.contents[header.base_offset]
                handed += [
                    (header.base_offset + at, identity)
                    for at, identity in enumerate(content.ids)
                    if header.base_offset + at >= offset
                ]
        return next_offset, handed

    def _check_isolation(self, who: str, log: CommittedLog, header: BatchHeader, *, skipped: bool) -> None:
        ending = next(
            (
                (marker, committed)
                for producer_id, first, marker, committed in log.ended
                if producer_id == header.producer_id and first <= header.base_offset < marker
            ),
            None,
        )
        if ending is None:
            raise InvariantError(
                "no precommitted read", f"{who} read {log.place} {header.base_offset} of a transaction that is open"
            )
        if ending[1] and skipped:
            raise InvariantError(
                "no committed record is left out", f"{who} was told that {log.place} {header.base_offset} is aborted"
            )
        if not ending[1] and not skipped:
            raise InvariantError(
                "no aborted read", f"{who} read {log.place} {header.base_offset} of an aborted transaction"
            )

    def lost_range(self, place: TopicPartition, first: int, end: int) -> None:
        """A broker has reported that it dropped [first, end) of its log."""
        self.reported[place].append((first, end))

    def power_took(self, place: TopicPartition, first: int, end: int) -> None:
        """A machine has come back without [first, end) of its log, which nothing had promised to have on the disk."""
        self.without_power[place].append((first, end))

    def wrote(self, who: str, place: TopicPartition, data: bytes) -> None:
        """Take in whole batches that a replica has in its log: an epoch gives an offset out once."""
        for _, header in batches_in(data):
            key = (place, header.leader_epoch, header.base_offset)
            if self.written.setdefault(key, header.crc) != header.crc:
                raise InvariantError(
                    "an epoch gives an offset out once",
                    f"{who} has another batch at {place} {header.base_offset} of epoch {header.leader_epoch}",
                )

    def check_losses(self) -> None:
        """What was acknowledged and may be lost is there in the end, or was reported to be lost."""
        for place, acked in self.acked_at.items():
            log = self.log(place)
            for identity, offset in acked.items():
                if identity in log.offsets:
                    continue
                told = self.reported[place] + self.without_power[place]
                if not any(first <= offset < end for first, end in told):
                    raise InvariantError(
                        "losses are reported",
                        f"{identity} was acknowledged with acks={self.acked[place][identity]} at {offset} of {place}; "
                        "it is gone, unreported",
                    )
                self.lost_alone += 1

    # Groups

    def offset_asked(self, group: str, place: TopicPartition, offset: int) -> None:
        """A member is about to commit; whether that is done it may never hear."""
        self.asked[group, place].add(offset)

    def offset_committed(self, group: str, place: TopicPartition, offset: int) -> None:
        key = (group, place)
        self.commits[key] = max(self.commits.get(key, 0), offset)

    def offset_found(self, who: str, group: str, place: TopicPartition, offset: int, at_least: int) -> None:
        """
        A member fetched the group's offset (-1: none); `at_least` was known to be committed before it asked.

        From then on that is known of what it found, even if who committed it has had no answer.
        """
        if max(offset, 0) < at_least:
            raise InvariantError(
                "offsets never regress", f"{who} found {offset} of {group} in {place}, {at_least} was committed before"
            )
        if offset >= 0:
            if offset not in self.asked[group, place]:
                raise InvariantError(
                    "offsets are those that were committed", f"{who} found {offset} of {group} in {place}, nobody's"
                )
            self.offset_committed(group, place, offset)


class Aborted:
    """Leaves out aborted transactions as a client does: from their first offset on, until their marker."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._pending = sorted(transactions, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def skips(self, header: BatchHeader) -> bool:
        while self._pending and self._pending[-1][1] <= header.last_offset:
            self._open.add(self._pending.pop()[0])
        if header.is_control:
            self._open.discard(header.producer_id)
            return False
        return bool(header.attributes & TRANSACTIONAL) and header.producer_id in self._open


def _batch(data: bytes, position: int, header: BatchHeader) -> bytes:
    return data[position : position + header.size]


def identify(record: Record) -> RecordId | None:
    """Return whose record it is; None for one that no simulated client wrote."""
    writer, colon, number = (record.value or b"").decode(errors="replace").partition(":")
    return RecordId(writer, int(number)) if colon and number.isdigit() else None
