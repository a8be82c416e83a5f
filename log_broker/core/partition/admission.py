"""
What a topic's config demands of a batch, apart from the state of its partition: checked, and made what is stored.

`Admission.run` may be called in any thread. A small batch is admitted where it is appended; what takes longer than a
turn of an event loop may take is left to whoever runs the partition, as a `CheckAside`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import BatchHeader, read_header
from log_broker.records.compression import DECOMPRESSED_BYTES_MAX, Codec
from log_broker.records.contracts import Fault, SideChecks
from log_broker.records.quarantined import without
from log_broker.records.record import recompress
from log_broker.records.validation import (
    READ_AT_ONCE_MAX,
    RecordRules,
    RecordsRefusedError,
    check_records,
    check_section,
    too_large,
)

# What is done within a turn of the event loop: some milliseconds at the most.
CHECKED_AT_ONCE_MAX = 2_000  # records
CHECKED_AT_ONCE_BYTES_MAX = 128 * 1024  # of them, decompressed
COMPRESSED_AT_ONCE_BYTES_MAX = 16 * 1024


class Admitted(NamedTuple):
    """A batch as it is to be stored, and what was left out of it because of its contracts."""

    batch: memoryview
    left_out: tuple[Fault, ...] | None = None


class Admission(NamedTuple):
    """One batch and the config that it came under. `may_leave_out` says that the validator's word is the last."""

    batch: memoryview
    header: BatchHeader
    rules: RecordRules
    checks: SideChecks
    now_ms: int
    bytes_max: int
    codec: Codec | None = None  # of what is stored; None: as it came
    level: int | None = None
    looks_at_records: bool = True
    may_leave_out: bool = False
    is_unread: bool = False  # it is not known yet whether its records can be read

    @property
    def is_long(self) -> bool:
        """Whether the batch is too large for one turn of an event loop; a small one may still decompress into more."""
        count, size = self.header.record_count, len(self.batch)
        if self.is_unread or (count > READ_AT_ONCE_MAX and not self.header.compression):
            return True
        if self.looks_at_records and (count > CHECKED_AT_ONCE_MAX or size > CHECKED_AT_ONCE_BYTES_MAX):
            return True
        return self._recompresses and size > COMPRESSED_AT_ONCE_BYTES_MAX

    def run(self, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Admitted:
        """
        Raises BrokerError, RecordsRefusedError for records that may not enter.

        DecompressionBoundError says that the batch has more than `bytes_max` decompressed.
        """
        batch, header = self.batch, self.header
        left_out: Sequence[Fault] | None = None
        if self.looks_at_records:
            try:
                check_records(
                    batch, header, self.rules, self.checks, self.now_ms, bytes_max=bytes_max, is_unread=self.is_unread
                )
            except RecordsRefusedError as error:
                if not error.can_be_left_out or not self.may_leave_out:
                    raise
                left_out = error.faults
                batch = memoryview(without(batch, header, {fault.at for fault in left_out}))
                header = read_header(batch)
        elif (
            self._recompresses or self.is_unread or (header.record_count > READ_AT_ONCE_MAX and not header.compression)
        ):
            check_section(batch, header, bytes_max=bytes_max, is_unread=self.is_unread)
        if self._recompresses:
            assert self.codec is not None, "there is a codec to compress with"
            batch = memoryview(recompress(batch, self.codec, level=self.level))
            if len(batch) > self.bytes_max:
                raise too_large(len(batch), self.bytes_max)
        return Admitted(batch, None if left_out is None else tuple(left_out))

    def faults(self) -> Sequence[Fault]:
        """Say which records break the topic's contracts; raises BrokerError for records that cannot be read."""
        try:
            check_records(self.batch, self.header, self.rules, self.checks, self.now_ms)
        except RecordsRefusedError as error:
            return error.faults
        return ()

    @property
    def _recompresses(self) -> bool:
        return self.codec is not None and self.header.compression != self.codec


def refused_by_time(admission: Admission) -> BrokerError:
    """
    Say why a batch is refused whose header names a timestamp beyond the topic's bound.

    Its records are read only to say which of them that concerns, and only where that is quick.
    """
    if not admission.is_long:
        try:
            admission.run(bytes_max=CHECKED_AT_ONCE_BYTES_MAX)
        except RecordsRefusedError as error:
            return error
        except BrokerError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                return error
    newest, latest = admission.header.max_timestamp, admission.now_ms + (admission.rules.timestamp_after_ms_max or 0)
    return BrokerError(
        ErrorCode.INVALID_TIMESTAMP, f"the header names timestamp {newest} and {latest} is the latest that is taken"
    )
