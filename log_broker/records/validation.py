"""
What a broker checks before a produced batch enters the log.

The rules and their error codes are Kafka's (its LogValidator and ProduceRequest), with one difference: a batch is
decompressed only where the topic asks for something that needs its records. The records of an uncompressed one are
always held against its header; of a compressed one the count is, against what so many bytes can hold.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import Cause, Contract, RecordCheck, RecordValidator
from log_broker.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_OFFSET,
    MIN_LENGTH,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
)
from log_broker.records.compression import DECOMPRESSED_BYTES_MAX, Codec
from log_broker.records.contracts import Asked, Fault, SideChecks, WithoutRegistry, all_pass, fault_of
from log_broker.records.readable import (
    RECORD_BYTES_MIN,
    HeadersLeft,
    MalformedRecordsError,
    check_readable,
    check_single,
)
from log_broker.records.record import records_section, spans_of

RECORD_ERRORS_MAX = 100  # of one batch: what a client needs to see is that and why, not each of a million
# What a batch may bring into quarantine, where each record takes some 500 bytes more than it had.
QUARANTINED_MAX = 50_000
QUARANTINED_BYTES_MAX = 32 * 1024 * 1024
RECORDS_MAX = 1_000_000  # of one batch: the most that librdkafka's batch.num.messages can be set to
READ_AT_ONCE_MAX = 20_000  # records of an uncompressed batch; of a larger one they take more than 10 ms
# The most that a byte of each codec can stand for: gzip 258 bytes for 2 bits, snappy 64 for 3 bytes, lz4 255 for one,
# zstd a block of 128 KiB for four.
_GROWTH_MAX = {Codec.NONE: 1, Codec.GZIP: 1032, Codec.SNAPPY: 22, Codec.LZ4: 255, Codec.ZSTD: 32_768}
_CRC_FROM = 21
UNBOUNDED_MS = 2**63 - 1


class RecordsRefusedError(BrokerError):
    """
    Records of a batch may not enter the topic, so none of the batch does.

    With `can_be_left_out` the topic puts such records aside, and `faults` names all of them.
    """

    def __init__(self, code: ErrorCode, faults: Sequence[Fault], *, can_be_left_out: bool = False) -> None:
        shown = "; ".join(f"record {fault.at}: {fault.reason}" for fault in faults[:3])
        more = len(faults) - 3
        super().__init__(code, f"the batch is refused because of {shown}" + (f" and {more} more" if more > 0 else ""))
        self.faults = tuple(faults)
        self.can_be_left_out = can_be_left_out

    @property
    def record_errors(self) -> tuple[tuple[int, str], ...]:
        """What a client is told of single records: (index, reason)."""
        return tuple((fault.at, fault.reason) for fault in self.faults[:RECORD_ERRORS_MAX])


class RecordRules(NamedTuple):
    """What a topic demands of single records; all at their defaults means that no record need be looked at."""

    topic: str
    key_required: bool = False  # the topic is compacted, so that a null value is a tombstone
    key_validation: str = "none"
    value_validation: str = "none"
    timestamp_before_ms_max: int | None = None  # older than the broker's clock by more than this is refused
    timestamp_after_ms_max: int | None = None
    key_strategy: str = "TopicNameStrategy"
    value_strategy: str = "TopicNameStrategy"
    quarantines: bool = False

    def contract(self, *, is_key: bool) -> Contract | None:
        """What holds for the keys or the values, None where anything goes."""
        level = self.key_validation if is_key else self.value_validation
        if level == "none":
            return None
        strategy = self.key_strategy if is_key else self.value_strategy
        return Contract(
            topic=self.topic,
            is_key=is_key,
            level=level,
            strategy=strategy,
            takes_null=self.key_required and not is_key,
        )


def check_batch(batch: Buffer, *, bytes_max: int) -> BatchHeader:
    """
    Check that `batch` is exactly one whole, intact batch as a client may write it, and return its header.

    The records of an uncompressed batch can be read then, but for one of more than READ_AT_ONCE_MAX, where
    `check_section` is left to the caller; so it is at TooManyHeadersError, raised when all else is in order. Raises
    BrokerError with the code that Kafka answers.
    """
    size = len(batch)
    if size <= MAGIC_OFFSET:
        raise BrokerError(ErrorCode.INVALID_RECORD, "the request holds no complete record batch")
    if batch[MAGIC_OFFSET] != MAGIC:
        raise BrokerError(
            ErrorCode.INVALID_RECORD, f"only message format 2 is accepted, the batch has format {batch[MAGIC_OFFSET]}"
        )
    if size < HEADER_BYTES:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "the batch ends inside its header")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    length = header[1] + LENGTH_OVERHEAD_BYTES
    if length != size:
        raise _wrong_length(length, size)
    if size > bytes_max:
        raise too_large(size, bytes_max)
    if crc32c(batch[_CRC_FROM:]) != header[4]:
        raise BrokerError(ErrorCode.CORRUPT_MESSAGE, "the checksum of the batch is wrong")
    base_offset, attributes, last_offset_delta, count = header[0], header[5], header[6], header[12]
    if base_offset != 0 or count < 1 or last_offset_delta != count - 1 or attributes & CONTROL:
        raise _malformed_header(header)
    if header[9] >= 0 and (header[11] < 0 or header[10] < 0):
        raise BrokerError(
            ErrorCode.INVALID_RECORD, f"sequence {header[11]} of producer {header[9]} epoch {header[10]} is invalid"
        )
    if attributes & COMPRESSION_MASK or count > READ_AT_ONCE_MAX:
        _check_count(header, size - HEADER_BYTES)
    elif count == 1:
        check_single(batch, size)
    else:
        check_readable(bytes(batch[HEADER_BYTES:]), count, HeadersLeft())
    return header


def _check_count(header: BatchHeader, payload_bytes: int) -> None:
    """Hold the count of a batch against what its bytes can hold at the most."""
    codec, count = header.compression, header.record_count
    if codec > Codec.ZSTD:
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}")
    bytes_max = min(payload_bytes * _GROWTH_MAX[Codec(codec)], DECOMPRESSED_BYTES_MAX)
    if count * RECORD_BYTES_MIN > bytes_max:
        raise MalformedRecordsError(
            f"{count} records do not fit in {payload_bytes} bytes of {Codec(codec).name.lower()}"
        )
    if count > RECORDS_MAX:
        # A Java producer splits a batch at this code.
        raise BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {count} records; at most {RECORDS_MAX} are taken")


def too_large(size: int, bytes_max: int) -> BrokerError:
    """Say that a batch is larger than max.message.bytes."""
    return BrokerError(ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes and the topic takes {bytes_max}")


def check_client_version(batch: Buffer, produce_version: int) -> None:
    """
    Check what a client of an older Produce version may send; needed below version 7 only.

    Raises BrokerError: message formats 0 and 1 are no longer stored, and zstd came with version 7 (KIP-110).
    """
    if len(batch) <= MAGIC_OFFSET:
        return
    if produce_version < 3 and batch[MAGIC_OFFSET] < MAGIC:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format {batch[MAGIC_OFFSET]} is no longer supported"
        )
    if len(batch) >= HEADER_BYTES and batch[_CRC_FROM + 1] & COMPRESSION_MASK == Codec.ZSTD:
        raise BrokerError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or newer")


def _wrong_length(length: int, size: int) -> BrokerError:
    if length > size:
        return BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the batch says {length} bytes and {size} arrived")
    if length < MIN_LENGTH + LENGTH_OVERHEAD_BYTES:
        return BrokerError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {length} bytes is smaller than its header")
    return BrokerError(ErrorCode.INVALID_RECORD, "a partition takes exactly one record batch per request")


def _malformed_header(header: BatchHeader) -> BrokerError:
    if header.attributes & CONTROL:
        reason = "clients may not write control records"
    elif header.base_offset != 0:
        reason = f"the base offset of a produced batch is 0, not {header.base_offset}"
    elif header.record_count < 1:
        reason = f"a batch of {header.record_count} records"
    else:
        reason = f"{header.record_count} records do not match a last offset delta of {header.last_offset_delta}"
    return BrokerError(ErrorCode.INVALID_RECORD, reason)


def check_section(
    batch: Buffer, header: BatchHeader, *, bytes_max: int = DECOMPRESSED_BYTES_MAX, is_unread: bool = False
) -> bytes:
    """
    Return the records of a batch as plain bytes, once it is known that they can be read.

    `is_unread` says that `check_batch` could not tell.

    Raises MalformedRecordsError, or what `decompress` raises, DecompressionBoundError above `bytes_max` for one.
    """
    section = bytes(records_section(batch, header, bytes_max=bytes_max))  # indexing bytes is faster than a view
    if is_unread or header.compression or header.record_count > READ_AT_ONCE_MAX:
        check_readable(section, header.record_count)
    return section


def check_records(
    batch: Buffer,
    header: BatchHeader,
    rules: RecordRules,
    checks: SideChecks,
    now_ms: int,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    is_unread: bool = False,
) -> None:
    """
    Look at every record of the batch; raises RecordsRefusedError naming each that breaks `rules`.

    Raises MalformedRecordsError, or what `decompress` raises, DecompressionBoundError above `bytes_max` for one.
    """
    section = check_section(batch, header, bytes_max=bytes_max, is_unread=is_unread)
    times = _times(header, rules, now_ms)
    keyless = checks.keyless()
    asked = Asked(
        key_required=rules.key_required or keyless is not None,
        takes_null=rules.key_required and checks.value is not None and checks.value.violation(None) is None,
    )
    if times is not None:
        asked = asked.within(times, header.base_timestamp)
    if _all_pass(section, header.record_count, checks, asked):
        return
    faults: list[Fault] = []
    code = ErrorCode.INVALID_RECORD
    by_contract = True
    for index, span in enumerate(spans_of(section, header.record_count)):
        fault: Fault | None = None
        if rules.key_required and span[3] < 0:
            fault = Fault(index, "a compacted topic takes no record without a key", cause=Cause.NO_KEY)
            by_contract = False
        elif times is not None and (late := _late(header.base_timestamp + span[0], times)) is not None:
            fault = Fault(index, late, cause=Cause.TIMESTAMP)
            by_contract = False
            code = ErrorCode.INVALID_TIMESTAMP
        elif keyless is not None and span[3] < 0:
            fault = Fault.of(index, "key", keyless)
        else:
            fault = fault_of(index, section, span, checks)
        if fault is not None:
            faults.append(fault)
            if len(faults) >= (QUARANTINED_MAX if rules.quarantines else RECORD_ERRORS_MAX):
                break
    if faults:
        fits = len(faults) < QUARANTINED_MAX and len(section) <= QUARANTINED_BYTES_MAX
        raise RecordsRefusedError(code, faults, can_be_left_out=rules.quarantines and by_contract and fits)


def _all_pass(section: bytes, count: int, checks: SideChecks, asked: Asked) -> bool:
    """The quick look at a batch, and again once its first record has made its frame known."""
    if all_pass(section, count, checks, asked):
        return True
    first = next(spans_of(section, count))
    return fault_of(0, section, first, checks) is None and all_pass(section, count, checks, asked)


def side_checks(rules: RecordRules, validator: RecordValidator | None) -> SideChecks:
    """What to hold the keys and values of a topic against."""
    key, value = rules.contract(is_key=True), rules.contract(is_key=False)
    return SideChecks(
        None if key is None else _check_of(key, validator), None if value is None else _check_of(value, validator)
    )


def _check_of(contract: Contract, validator: RecordValidator | None) -> RecordCheck:
    return WithoutRegistry(is_key=contract.is_key) if validator is None else validator.check_of(contract)


def _times(header: BatchHeader, rules: RecordRules, now_ms: int) -> tuple[int, int] | None:
    """The earliest and the latest timestamp that a record may have, None when any time will do."""
    before, after = rules.timestamp_before_ms_max, rules.timestamp_after_ms_max
    if header.attributes & LOG_APPEND_TIME or (before is None and after is None):
        return None
    earliest = -UNBOUNDED_MS if before is None else now_ms - before
    return earliest, UNBOUNDED_MS if after is None else now_ms + after


def _late(time: int, times: tuple[int, int]) -> str | None:
    if times[0] <= time <= times[1] or time == NO_TIMESTAMP:  # of which there is nothing to say
        return None
    return f"timestamp {time} is not within {times[0]} … {times[1]}"
