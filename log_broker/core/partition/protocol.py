"""
What a partition is told and what it asks for: the events and effects of `core.partition`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from log_broker.core.partition.admission import Admission
from log_broker.core.partition.producers import AbortedTransaction, ProducerEntry
from log_broker.core.partition.replication import IsrProposal
from log_broker.errors import ErrorCode
from log_broker.records.contracts import Fault
from log_broker.records.control import EndMarker

# Events and effects of a produce request are named tuples: values that cost a third of a frozen dataclass to make, and
# every microsecond here is several percent of a small request.


class AppendResult(NamedTuple):
    """
    What a producer is told. `record_errors` holds (index of the record in its batch, reason).

    `left_out` is for the server: the records of the batch that were left out of the log because of their contracts.
    Without any there, the batch repeats one whose gaps in the log say what was left out. None: all of it is in the log.
    `refused` is for the server as well: the records because of which the batch is refused.
    """

    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    message: str | None = None
    left_out: tuple[Fault, ...] | None = None
    refused: tuple[Fault, ...] = ()


class Append(NamedTuple):
    """A produced batch, in memory that may be written to. `token` comes back in the Reply."""

    batch: memoryview
    acks: int
    token: Any


class AppendUnsequenced(NamedTuple):
    """A transactional batch that a coordinator of this broker writes for a producer: offsets of a group."""

    batch: memoryview
    token: Any


class AppendQuarantined(NamedTuple):
    """
    Records that another partition has left out of one batch; they carry the sequence with which that batch began.

    Their sequences have gaps, so a repeated batch is known by its first one alone.
    """

    batch: memoryview
    token: Any


class EndTransaction(NamedTuple):
    """
    The producer's transaction has ended here: append the marker. `token` comes back in the Reply.

    `bumped` says that `producer_epoch` is already that of the next transaction (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    marker: EndMarker
    token: Any
    bumped: bool = False


class TurnEnded(NamedTuple):
    """All requests that were ready together have been handled."""


class Written(NamedTuple):
    """The first `batches` of the last Write are in the file, and on the disk if it asked for a sync."""

    batches: int
    synced: bool


class WriteFailed(NamedTuple):
    """Nothing of the last Write is in the file any more. With `lost_sync`, earlier unsynced bytes are in doubt too."""

    reason: str
    lost_sync: bool = False


class AskTurn(NamedTuple):
    """Send TurnEnded once the requests that are ready now have been handled."""


class AskValidator(NamedTuple):
    """Have the validator learn what is new, then append the batch again: it looked refusable by what was known here."""

    batch: memoryview
    acks: int
    token: Any


class CheckAside(NamedTuple):
    """
    Run an admission that takes long in another thread, then append the batch again with its outcome.

    What comes for the partition meanwhile is appended behind it.
    """

    batch: memoryview
    acks: int
    token: Any
    admission: Admission
    has_learned: bool = False


class PendingBatch(NamedTuple):
    """A batch that has its offset and waits to be written; without bytes it only waits for those before it."""

    batch: memoryview | None
    base_offset: int
    last_offset: int
    max_timestamp: int
    token: Any  # None: already answered (acks=0)
    result: AppendResult
    producer_id: int
    previous: ProducerEntry | None  # the producer before this batch
    awaits_all: bool = False  # answered when the high watermark has passed it


class Write(NamedTuple):
    """
    Append `batches` to the log in one go; then sync what is unsynced, if asked. No batches: only sync.

    `epochs`, where an epoch begins with these batches, must be on the disk before the first of them is in the log:
    recovery believes them rather than the batches, whose checksums leave the epoch out. `gaps` says that offsets may be
    missing between batches, which recovery must know of too.
    """

    batches: Sequence[PendingBatch]
    sync: bool
    epochs: Sequence[tuple[int, int]] | None = None
    gaps: bool = False


class Reply(NamedTuple):
    """Answer a producer, or who brought the leader's records to a follower."""

    token: Any
    result: AppendResult


class WatermarkMoved(NamedTuple):
    """Readers may now read up to here."""

    high_watermark: int


class TransactionsAborted(NamedTuple):
    """The markers of these are in the log: readers of committed records must be told to leave them out."""

    transactions: Sequence[AbortedTransaction]


class LogEndMoved(NamedTuple):
    """Followers may now fetch up to here."""

    written_end: int


class IsrWanted(NamedTuple):
    """Ask the controller for another ISR; the answer goes to `isr_settled` or `isr_refused`."""

    proposal: IsrProposal


Event = Append | AppendUnsequenced | AppendQuarantined | EndTransaction | TurnEnded | Written | WriteFailed
Effect = (
    AskTurn | AskValidator | CheckAside | Write | Reply | WatermarkMoved | TransactionsAborted | LogEndMoved | IsrWanted
)
