"""
What a history of clients of a replicated log may not show: the anomalies of Jepsen's Kafka workload, and duplicates.

Pure: operations in, anomalies out. The version order of a key is that of the offsets which acknowledgements and polls
have told; an index is a place in it. Values of transactions that were aborted, and of operations of unknown outcome
that nobody polled, have no place in it. Cycles are in `chaos_cycles`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from chaos_cycles import Dependency, cycles
from chaos_history import Op, Record


class Kind(StrEnum):
    """The anomalies, by the names that a report shows."""

    LOST_WRITE = "lost write"  # acknowledged, and missing among what was polled from there on
    ABORTED_READ = "aborted read"  # G1a: polled, though it certainly failed or was aborted
    INCONSISTENT_OFFSETS = "inconsistent offsets"  # one offset, several values
    DUPLICATE = "duplicate"  # one value, several offsets
    POLL_SKIP = "poll skip"  # a process went on behind records that exist
    NONMONOTONIC_POLL = "nonmonotonic poll"  # a process went on before where it had been
    INTERNAL_POLL_SKIP = "internal poll skip"  # the same within one operation
    INTERNAL_NONMONOTONIC_POLL = "internal nonmonotonic poll"
    NONMONOTONIC_SEND = "nonmonotonic send"  # what a process sent later lies before what it sent earlier
    INTERNAL_NONMONOTONIC_SEND = "internal nonmonotonic send"  # the same within one operation
    LATE_WRITE = "late write"  # lies before what another process had been told of before it was sent
    PRECOMMITTED_READ = "precommitted read"  # polled before its transaction was committed
    WRITE_CYCLE = "write cycle"  # G0: transactions wrote before each other in two keys
    INFORMATION_CYCLE = "information cycle"  # G1c: transactions read of each other


# Kafka's transactions do not isolate writers from each other: two at once may interleave in any order.
ALLOWED_BY_KAFKA = frozenset({Kind.WRITE_CYCLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One finding; `ops` are the numbers of the operations that show it, `value` the record's that is doubled."""

    kind: Kind
    key: str
    text: str
    ops: tuple[int, ...] = ()
    value: str = ""

    def __str__(self) -> str:
        return f"{self.kind} in {self.key}: {self.text} (operations {', '.join(map(str, self.ops))})"


def check(history: Iterable[Op]) -> list[Anomaly]:
    """Every anomaly of a history, in the order of `Kind`."""
    evidence = Evidence(tuple(sorted(history, key=lambda op: op.number)))
    return [anomaly for rule in RULES for anomaly in rule(evidence)]


@dataclass
class KeyLog:
    """What is known of one key: the values at each offset, and every value's place."""

    values_at: dict[int, list[str]] = field(default_factory=dict)
    index_of: dict[str, int] = field(default_factory=dict)
    index_at: dict[int, int] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)

    def note(self, offset: int, value: str) -> None:
        values = self.values_at.setdefault(offset, [])
        if value not in values:
            values.append(value)

    def close(self) -> None:
        """Number the offsets; of a value at several of them the first counts."""
        self.offsets = sorted(self.values_at)
        for index, offset in enumerate(self.offsets):
            self.index_at[offset] = index
            for value in self.values_at[offset]:
                self.index_of.setdefault(value, index)

    def place(self, record: Record) -> int | None:
        """The index of a record: by its offset where that is known, as its value may lie at several."""
        if record.offset is not None:
            return self.index_at.get(record.offset)
        return self.index_of.get(record.value)


class Evidence:
    """A history with what follows from it, computed once for all rules."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.writer_of: dict[tuple[str, str], Op] = {(r.key, r.value): op for op in ops for r in op.sends}
        self.polled: set[tuple[str, str]] = {(r.key, r.value) for op in ops for r in op.polls if op.outcome == "ok"}
        self.logs: dict[str, KeyLog] = defaultdict(KeyLog)
        for op in ops:
            if op.outcome == "ok":
                self._note(op.polls)
            if self.took_effect(op):
                self._note(op.sends)
        for log in self.logs.values():
            log.close()

    def took_effect(self, op: Op) -> bool:
        """Whether what it sent is known to be in the log: acknowledged, or a transaction of which a part was polled."""
        if op.outcome == "ok":
            return True
        return op.outcome == "info" and op.transaction and any((r.key, r.value) in self.polled for r in op.sends)

    def by_process(self) -> Iterator[list[Op]]:
        processes: dict[str, list[Op]] = defaultdict(list)
        for op in self.ops:
            processes[op.process].append(op)
        yield from processes.values()

    def step(self, before: Record, after: Record) -> int:
        """How many places one record of a key is behind another; 1 where it is not known."""
        log = self.logs[before.key]
        first, second = log.place(before), log.place(after)
        return 1 if first is None or second is None else second - first

    def _note(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.offset is not None:
                self.logs[record.key].note(record.offset, record.value)


def lost_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """Acknowledged below the last place that anyone polled, or before a poll of everything, and never polled."""
    last_polled: dict[str, int] = {}
    for key, value in evidence.polled:
        index = evidence.logs[key].index_of[value]
        last_polled[key] = max(last_polled.get(key, -1), index)
    polled_to_end: dict[str, float] = {}
    for op in evidence.ops:
        for key in op.to_end:
            polled_to_end[key] = max(polled_to_end.get(key, 0.0), op.began)
    for op in evidence.ops:
        if not evidence.took_effect(op):
            continue
        for record in op.sends:
            if (record.key, record.value) in evidence.polled:
                continue
            index = evidence.logs[record.key].index_of.get(record.value)
            passed = index is not None and index <= last_polled.get(record.key, -1)
            if passed or op.ended <= polled_to_end.get(record.key, -1.0):
                yield Anomaly(
                    kind=Kind.LOST_WRITE,
                    key=record.key,
                    text=f"{record.value} was acknowledged at offset {record.offset} and is not there",
                    ops=(op.number,),
                )


def aborted_reads(evidence: Evidence) -> Iterator[Anomaly]:
    for reader, record in _polls(evidence):
        writer = evidence.writer_of.get((record.key, record.value))
        if writer is not None and writer.outcome == "fail":
            yield Anomaly(
                kind=Kind.ABORTED_READ,
                key=record.key,
                text=f"{record.value} was polled at offset {record.offset}, and what sent it had failed",
                ops=(writer.number, reader.number),
            )


def inconsistent_offsets(evidence: Evidence) -> Iterator[Anomaly]:
    contested = {
        (key, offset): values
        for key, log in evidence.logs.items()
        for offset, values in log.values_at.items()
        if len(values) > 1
    }
    tellers: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for op in evidence.ops:
        for place in {(record.key, record.offset) for record in (*op.sends, *op.polls)}:
            if place in contested:
                tellers[place].append(op.number)
    for (key, offset), values in contested.items():
        text = f"offset {offset} holds {' and '.join(values)}"
        yield Anomaly(kind=Kind.INCONSISTENT_OFFSETS, key=key, text=text, ops=tuple(tellers[key, offset]))


def duplicates(evidence: Evidence) -> Iterator[Anomaly]:
    for key, log in evidence.logs.items():
        offsets_of: dict[str, list[int]] = defaultdict(list)
        for offset in log.offsets:
            for value in log.values_at[offset]:
                offsets_of[value].append(offset)
        for value, offsets in offsets_of.items():
            if len(offsets) > 1:
                where = ", ".join(map(str, offsets))
                yield Anomaly(kind=Kind.DUPLICATE, key=key, text=f"{value} lies at offsets {where}", value=value)


def external_polls(evidence: Evidence) -> Iterator[Anomaly]:
    """Of the records that a process polls from a key one after the other, over its operations."""
    for ops in evidence.by_process():
        last: dict[str, tuple[Op, Record]] = {}
        for op in ops:
            for key in op.moved:
                last.pop(key, None)
            if op.outcome != "ok":
                continue
            for key, records in _by_key(op.polls).items():
                if key in last and key not in op.moved:
                    before, record = last[key]
                    step = evidence.step(record, records[0])
                    if step != 1:
                        yield Anomaly(
                            kind=Kind.POLL_SKIP if step > 1 else Kind.NONMONOTONIC_POLL,
                            key=key,
                            text=f"{op.process} polled {record.value} and then {records[0].value}, {step} places on",
                            ops=(before.number, op.number),
                        )
                last[key] = (op, records[-1])


def internal_polls(evidence: Evidence) -> Iterator[Anomaly]:
    for op in evidence.ops:
        if op.outcome != "ok":
            continue
        for key, records in _by_key(op.polls).items():
            if key in op.moved:
                continue
            for before, after in pairwise(records):
                step = evidence.step(before, after)
                if step != 1:
                    yield Anomaly(
                        kind=Kind.INTERNAL_POLL_SKIP if step > 1 else Kind.INTERNAL_NONMONOTONIC_POLL,
                        key=key,
                        text=f"{before.value} and then {after.value}, {step} places on",
                        ops=(op.number,),
                    )


def external_sends(evidence: Evidence) -> Iterator[Anomaly]:
    for ops in evidence.by_process():
        last: dict[str, tuple[Op, Record]] = {}
        for op in ops:
            if not evidence.took_effect(op):
                continue
            for key, records in _by_key(op.sends).items():
                if key in last and evidence.step(last[key][1], records[0]) < 1:
                    before, after = last[key][1].value, records[0].value
                    yield Anomaly(
                        kind=Kind.NONMONOTONIC_SEND,
                        key=key,
                        text=f"{op.process} sent {before} before {after}, and it lies behind it",
                        ops=(last[key][0].number, op.number),
                    )
                last[key] = (op, records[-1])


def internal_sends(evidence: Evidence) -> Iterator[Anomaly]:
    for op in evidence.ops:
        if not evidence.took_effect(op):
            continue
        for key, records in _by_key(op.sends).items():
            for before, after in pairwise(records):
                if evidence.step(before, after) < 1:
                    yield Anomaly(
                        kind=Kind.INTERNAL_NONMONOTONIC_SEND,
                        key=key,
                        text=f"{before.value} was sent before {after.value} and lies behind it",
                        ops=(op.number,),
                    )


def late_writes(evidence: Evidence) -> Iterator[Anomaly]:
    """
    The log of a key is in the order of real time: who sends after another process has had an acknowledgement of a
    record, or has polled it, comes to lie behind that. (Of one process: `external_sends`.)
    """
    told: dict[str, list[tuple[int, Op, Record, bool]]] = defaultdict(list)
    for op in evidence.ops:
        for records, is_send in ((op.sends, True), (op.polls, False)):
            if op.outcome == "ok":
                for record in records:
                    if record.offset is not None:
                        told[record.key].append((record.offset, op, record, is_send))
    for key, places in told.items():
        places.sort(key=lambda place: -place[0])
        behind: dict[str, tuple[float, Op, Record]] = {}  # by process, what was told first of all that lies behind
        for _, op, record, is_send in places:
            for process, (ended, other, later) in behind.items():
                if is_send and process != op.process and ended < op.began and later.offset != record.offset:
                    yield Anomaly(
                        kind=Kind.LATE_WRITE,
                        key=key,
                        text=f"{record.value} was sent when {other.process} knew {later.value}, and lies before it",
                        ops=(other.number, op.number),
                    )
                    break
            known = behind.get(op.process)
            if known is None or op.ended < known[0]:
                behind[op.process] = (op.ended, op, record)


def precommitted_reads(evidence: Evidence) -> Iterator[Anomaly]:
    """Polled by its own transaction, or by anyone before its commit was asked for."""
    for reader, record in _polls(evidence):
        writer = evidence.writer_of.get((record.key, record.value))
        if writer is None or not writer.transaction:
            continue
        own = writer.number == reader.number
        early = writer.commit_began is not None and reader.ended < writer.commit_began
        if own or early:
            yield Anomaly(
                kind=Kind.PRECOMMITTED_READ,
                key=record.key,
                text=f"{record.value} was polled {'by its own transaction' if own else 'before it was committed'}",
                ops=(writer.number, reader.number),
            )


def write_cycles(evidence: Evidence) -> Iterator[Anomaly]:
    for cycle in cycles(_write_order(evidence)):
        yield Anomaly(
            kind=Kind.WRITE_CYCLE,
            key=", ".join(sorted({step.key for step in cycle})),
            text="each wrote before the next, the last before the first",
            ops=tuple(step.before for step in cycle),
        )


def information_cycles(evidence: Evidence) -> Iterator[Anomaly]:
    reads = [
        Dependency(before=writer.number, after=reader.number, key=record.key)
        for reader, record in _polls(evidence)
        if (writer := evidence.writer_of.get((record.key, record.value))) is not None and writer.number != reader.number
    ]
    for cycle in cycles(reads):
        yield Anomaly(
            kind=Kind.INFORMATION_CYCLE,
            key=", ".join(sorted({step.key for step in cycle})),
            text="each was read by the next, the last by the first",
            ops=tuple(step.before for step in cycle),
        )


RULES: tuple[Callable[[Evidence], Iterator[Anomaly]], ...] = (
    lost_writes,
    aborted_reads,
    inconsistent_offsets,
    duplicates,
    external_polls,
    internal_polls,
    external_sends,
    internal_sends,
    late_writes,
    precommitted_reads,
    write_cycles,
    information_cycles,
)


def _polls(evidence: Evidence) -> Iterator[tuple[Op, Record]]:
    for op in evidence.ops:
        if op.outcome == "ok":
            for record in op.polls:
                yield op, record


def _write_order(evidence: Evidence) -> list[Dependency]:
    order = []
    for key, log in evidence.logs.items():
        writers = [
            evidence.writer_of[key, log.values_at[offset][0]]
            for offset in log.offsets
            if (key, log.values_at[offset][0]) in evidence.writer_of
        ]
        order += [
            Dependency(before=before.number, after=after.number, key=key)
            for before, after in pairwise(writers)
            if before.number != after.number
        ]
    return order


def _by_key(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.key, []).append(record)
    return found
