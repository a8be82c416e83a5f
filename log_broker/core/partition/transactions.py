"""
The transactions of one partition: which batches may open one, and up to where everything is decided.

A transactional batch enters only while its transaction is open here or after the coordinator has been asked whether
this partition belongs to it (KIP-890): otherwise a delayed request could open a transaction that nobody ends, and
everything behind it would stay unread for ever. `expect` notes who is being asked about, `answered` that an answer came
and `allow` that it was yes; the next batch of that producer or the marker of that transaction uses that up.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from log_broker.core.partition.producers import AbortedTransaction, ProducerStates
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader

EXPECTED_MAX = 10_000


@dataclass(slots=True)
class _Expected:
    """A producer about whose transaction the coordinator is asked; `sequence` is the lowest that waits for it."""

    epoch: int
    sequence: int
    allowed: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """A transaction whose marker has its offset and is not yet below the high watermark."""

    first_offset: int
    marker_offset: int
    aborted: AbortedTransaction | None


class PartitionTransactions:
    """What `Partition` keeps beside the states of its producers."""

    def __init__(self, producers: ProducerStates, ending: Iterable[Ending] = ()) -> None:
        self._producers = producers
        self._expected: dict[int, _Expected] = {}
        self._awaited: dict[int, int] = {}  # producer id -> its batches that wait for an answer
        self.ending = deque(ending)  # in order of the markers

    @property
    def first_unstable_offset(self) -> int | None:
        """The first record whose transaction is not decided, None when all are."""
        first = next(iter(self._producers.open_transactions.values()), None)
        for ending in self.ending:
            if first is None or ending.first_offset < first:
                first = ending.first_offset
        return first

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a batch of this producer continues a transaction that has records here."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.first_offset >= 0 and entry.epoch == epoch

    def expect(self, producer_id: int, epoch: int, sequence: int) -> None:
        """
        Note that a batch waits for the coordinator's answer.

        Should that be a refusal to repeat, no later batch may overtake it: one that is the first of its producer here
        would be taken, whatever its sequence.
        """
        self._awaited[producer_id] = self._awaited.get(producer_id, 0) + 1
        known = self._expected.get(producer_id)
        if known is None or known.epoch < epoch:
            if len(self._expected) >= EXPECTED_MAX:
                del self._expected[next(iter(self._expected))]
            self._expected[producer_id] = _Expected(epoch, sequence)
        elif known.epoch == epoch:
            known.sequence = min(known.sequence, sequence)

    def is_awaited(self, producer_id: int) -> bool:
        """Whether a batch of this producer waits for an answer, so that a later one must queue up behind it."""
        return producer_id in self._awaited

    def answered(self, producer_id: int) -> None:
        """Take note that one of the producer's batches waits no longer."""
        self._awaited[producer_id] -= 1
        if not self._awaited[producer_id]:
            del self._awaited[producer_id]

    def allow(self, producer_id: int, epoch: int) -> None:
        """Take the coordinator's word that the partition belongs to the producer's transaction."""
        known = self._expected.get(producer_id)
        if known is not None and known.epoch == epoch:
            known.allowed = True

    def admit(self, header: BatchHeader) -> None:
        """
        Let a transactional batch in, or raise BrokerError.

        INVALID_TXN_STATE for a partition outside the transaction, OUT_OF_ORDER_SEQUENCE_NUMBER for one that overtakes.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if self.is_open(producer_id, epoch):
            return
        known = self._expected.get(producer_id)
        if known is None or known.epoch != epoch or not known.allowed:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE, f"the partition is in no open transaction of producer {producer_id}"
            )
        if header.base_sequence > known.sequence:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {header.base_sequence} while {known.sequence} is missing",
            )
        del self._expected[producer_id]

    def forget_expected(self) -> None:
        """Whoever leads next asks the coordinator itself: markers that other leaders wrote are not seen here."""
        self._expected.clear()

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, *, bumped: bool) -> None:
        """
        Raise BrokerError for a marker from the past.

        INVALID_PRODUCER_EPOCH when the producer has gone on, TRANSACTION_COORDINATOR_FENCED for an old coordinator.
        With `bumped` the marker carries the epoch of the next transaction, so it must not end one of that epoch.
        """
        self._producers.check_epoch(producer_id, epoch)
        entry = self._producers.get(producer_id)
        if entry is None:
            return
        if bumped and entry.first_offset >= 0 and entry.epoch == epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has a newer transaction in epoch {epoch}"
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise BrokerError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a coordinator of epoch {coordinator_epoch} writes after one of epoch {entry.coordinator_epoch}",
            )

    def forbid(self, producer_id: int, epoch: int, *, bumped: bool) -> None:
        """
        Let a marker end what the coordinator has allowed, or is still asked about, in the transaction that it ends.

        With `bumped` that is the one before `epoch`: the producer need not wait for markers, so the first batches of
        its next transaction may be here already, and the coordinator answers once the markers are written.
        """
        known = self._expected.get(producer_id)
        if known is not None and known.epoch <= epoch - bumped:
            del self._expected[producer_id]

    def end(self, producer_id: int, marker_offset: int, *, committed: bool) -> None:
        """Take note of a marker that has got its offset, before the producer's state takes it."""
        first_offset = self._producers.open_transactions.get(producer_id)
        if first_offset is not None:
            aborted = None if committed else self._producers.aborted(producer_id, marker_offset)
            self.ending.append(Ending(first_offset, marker_offset, aborted))

    def written(self, from_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions that the markers in [from_offset, end_offset), now written, have aborted."""
        return [
            ending.aborted
            for ending in self.ending
            if ending.aborted is not None and from_offset <= ending.marker_offset < end_offset
        ]

    def decided(self, high_watermark: int) -> None:
        """Forget the transactions whose markers can be read."""
        while self.ending and self.ending[0].marker_offset < high_watermark:
            self.ending.popleft()

    def undo(self, end_offset: int) -> None:
        """Forget the markers from `end_offset` on, which could not be written."""
        while self.ending and self.ending[-1].marker_offset >= end_offset:
            self.ending.pop()
