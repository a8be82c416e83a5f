"""
Which transactional batches and markers a compaction may let go of.

- The records of an aborted transaction go at once, and have no say in what is the last record of a key.
- A marker stays for as long as a batch of its transaction does, since a reader tells by it whether to show the records.
  A pass that meets no batch of the transaction before the marker gives it a horizon like that of a tombstone
  (KIP-534), so that a reader that is on its way from the one to the other still finds it.
"""

from collections import deque
from collections.abc import Iterable

from log_broker.core.partition.producers import AbortedTransaction
from log_broker.records.batch import TRANSACTIONAL, BatchHeader
from log_broker.records.control import EndMarker


class CleanedTransactions:
    """What one pass over a log, in order, has met of transactions. All before the last stable offset are decided."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborting: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()  # producers of whose latest transaction a batch was met
        self.markers_gone: set[int] = set()  # offsets of the markers that this pass dropped

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take note of a batch of records, and say whether they were aborted."""
        if not header.attributes & TRANSACTIONAL:
            return False
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            transaction = self._to_come.popleft()
            self._aborting[transaction.producer_id] = transaction
        self._met.add(header.producer_id)
        aborting = self._aborting.get(header.producer_id)
        return aborting is not None and header.base_offset < aborting.last_offset

    def ends_nothing(self, header: BatchHeader, marker: EndMarker | None) -> bool:
        """Take note of a control batch, and say whether no batch of its transaction is left before it."""
        was_met = header.producer_id in self._met
        self._met.discard(header.producer_id)
        return marker is None or not was_met
