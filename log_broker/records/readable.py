"""
Whether the records of a batch can be read: each length, offset delta and field held against the bytes that are there.

A consumer that meets a record it cannot read stands still at its offset. So a batch is checked before it is stored.

    record   length varint, attributes int8, timestamp delta varlong, offset delta varint, key length varint, key,
             value length varint, value, headers count varint, [name length varint, name, value length varint, value]

Where the walk is compiled (:mod:`.compiled`), it says of sound batches that they are. What it does not say it of is
looked at here, which tells what is wrong, and all of them where nothing is compiled.

Records of one length that are laid out alike, as messages of a fixed size are, are checked together: each byte of their
fields is a column, taken out of the batch with that stride and compared as bytes. That costs a record 15 ns, where one
by one it is 0.4 µs.
"""

import struct
import sys
from typing import NamedTuple, Self

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.batch import HEADER_BYTES, Buffer
from log_broker.records.compiled import walk

RECORD_BYTES_MIN = 7  # one byte for each field of a record without key, value and headers
HEADERS_MAX = 100_000  # of a record: two bytes each, or next to nothing when they are compressed
HEADERS_AT_ONCE_MAX = 10_000  # of the records of a batch, in one turn of an event loop
_INT_BYTES_MAX = 5  # of a varint of 32 bits; Java's consumer reads no longer one
_LONG_BYTES_MAX = 10

_ALIKE_MIN = 16  # fewer are quicker checked one by one
_ALIKE_MAX = 1024  # at a time
_WINDOW = 64  # of records that are looked at together at first
_ONE_BY_ONE_MAX = 256  # before it is looked again whether records are alike

# Offset deltas are written zig-zag: delta d is the number 2d. Its bytes, lowest first, for the deltas of a column.
_FIRST_OF_ONE = bytes(range(0, 128, 2))  # deltas 0 … 63 have one byte
_FIRST = bytes(range(128, 256, 2)) * (_ALIKE_MAX // 64 + 1)
_SECOND_OF_TWO = b"".join(bytes([number]) * 64 for number in range(128))  # deltas up to 8191 have two
_SECOND = b"".join(bytes([number | 128]) * 64 for number in range(128))
_ONE_BYTE_END, _TWO_BYTES_END = 1 << 6, 1 << 13
_CONTINUED = bytes(range(128, 256))  # what every byte of a varint but the last looks like

_six_bytes = struct.Struct("6B").unpack_from


class MalformedRecordsError(BrokerError):
    """The checksum holds, yet the bytes are not the records that the header counts: the producer made them so."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, reason)


class TooManyHeadersError(BrokerError):
    """The records may be sound, but have more headers than are looked at within a turn of an event loop."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.MESSAGE_TOO_LARGE, "the records of the batch have very many headers")


class HeadersLeft:
    """How many more headers of a batch are looked at."""

    __slots__ = ("count",)

    def __init__(self, count: int = HEADERS_AT_ONCE_MAX) -> None:
        self.count = count

    def take(self, count: int) -> None:
        """Raises TooManyHeadersError."""
        self.count -= count
        if self.count < 0:
            raise TooManyHeadersError


def check_readable(section: bytes, count: int, headers: HeadersLeft | None = None) -> None:
    """
    Check that `section` is exactly `count` records with the offset deltas 0, 1, 2 …

    Raises MalformedRecordsError, and TooManyHeadersError when there are more than `headers` are left, if that is given.
    """
    if count * RECORD_BYTES_MIN > len(section):
        raise MalformedRecordsError(f"{count} records do not fit in {len(section)} bytes")
    if walk is not None and walk.is_sound(section, count, sys.maxsize if headers is None else headers.count):
        return
    index = position = 0
    step, window = 1, _WINDOW
    while index < count:
        last = min(index + step, count) - 1
        start = check_from(section, position, index, last, headers)
        position = check_from(section, start, last, last + 1, headers)
        index = last + 1
        alike, position = _alike(section, start, position, index, min(count, index + window))
        index += alike
        step, window = (1, min(4 * window, _ALIKE_MAX)) if alike else (min(2 * step, _ONE_BY_ONE_MAX), _WINDOW)
    if position != len(section):
        raise MalformedRecordsError(f"the batch has {len(section) - position} bytes behind its last record")


def check_single(batch: Buffer, size: int) -> None:
    """Check that a batch of `size` bytes holds exactly one uncompressed record; errors as `check_readable`."""
    if size >= HEADER_BYTES + RECORD_BYTES_MIN:
        one, two, three, four, five, six = _six_bytes(batch, HEADER_BYTES)
        if one < 0x80:
            start, length, time_delta, delta, key = HEADER_BYTES + 1, one, three, four, five
        else:
            start, length, time_delta, delta, key = HEADER_BYTES + 2, one - 0x80 + (two << 7), four, five, six
        if time_delta < 0x80 and not delta and key < 0x80 and two < 0x80 and start + (length >> 1) == size:
            at = start + 4 + (0 if key & 1 else key >> 1)
            if at + 1 < size and not length & 1 and (key == 1 or not key & 1):
                value = batch[at]
                at += 1
                if value >= 0x80:
                    value += (batch[at] << 7) - 0x80
                    at += 1
                if at + (value >> 1) == size - 1 and not value & 1 and value < 1 << 14 and not batch[size - 1]:
                    return
    if check_from(batch, HEADER_BYTES, 0, 1, HeadersLeft()) != size:
        raise MalformedRecordsError("the batch has bytes behind its only record")


def check_from(  # noqa: PLR0912, PLR0915 one loop
    section: Buffer, position: int, index: int, end_index: int, headers: HeadersLeft | None = None
) -> int:
    """
    Check the records from `index` on up to before `end_index`; return where they end. They begin at `position`.

    Raises MalformedRecordsError. Numbers of one or two bytes, which most are, are read in place.
    """
    size = len(section)
    try:
        for delta in range(2 * index, 2 * end_index, 2):
            number = section[position]
            position += 1
            if number >= 0x80:
                if (second := section[position]) < 0x80:
                    number += (second << 7) - 0x80
                    position += 1
                else:
                    number, position = _number(section, position - 1, _INT_BYTES_MAX)
            end = position + (number >> 1)
            if number & 1 or end > size:
                raise MalformedRecordsError("a record runs over the end of its batch")
            position += 1  # attributes, unused
            if section[position] >= 0x80:
                _, position = _number(section, position, _LONG_BYTES_MAX)
            else:
                position += 1
            number = section[position]
            position += 1
            if number >= 0x80:
                if (second := section[position]) < 0x80:
                    number += (second << 7) - 0x80
                    position += 1
                else:
                    number, position = _number(section, position - 1, _INT_BYTES_MAX)
            if number != delta:
                named = (number >> 1) ^ -(number & 1)
                raise MalformedRecordsError(f"record {delta >> 1} names the offset delta {named}")
            number = section[position]
            position += 1
            if number >= 0x80:
                number, position = _number(section, position - 1, _INT_BYTES_MAX)
            if not number & 1:
                position += number >> 1
            elif number != 1:
                raise MalformedRecordsError(f"record {delta >> 1} has a key of negative length")
            number = section[position]
            position += 1
            if number >= 0x80:
                if (second := section[position]) < 0x80:
                    number += (second << 7) - 0x80
                    position += 1
                else:
                    number, position = _number(section, position - 1, _INT_BYTES_MAX)
            if not number & 1:
                position += number >> 1
            elif number != 1:
                raise MalformedRecordsError(f"record {delta >> 1} has a value of negative length")
            position = position + 1 if section[position] == 0 else _headers_end(section, position, end, headers)
            if position != end:
                raise MalformedRecordsError(f"the fields of record {delta >> 1} do not end where the record does")
    except IndexError:
        raise MalformedRecordsError("the batch ends inside a record") from None
    return position


def _number(section: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    """Return (unsigned value, position behind it). Raises IndexError, and MalformedRecordsError above `bytes_max`."""
    value = 0
    for at in range(bytes_max):
        byte = section[position + at]
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return value, position + at + 1
    raise MalformedRecordsError(f"a number of a record is longer than {bytes_max} bytes")


def _headers_end(section: Buffer, position: int, end: int, headers: HeadersLeft | None) -> int:
    number, position = _number(section, position, _INT_BYTES_MAX)
    if number & 1 or number > end - position:  # each header has two bytes at least
        raise MalformedRecordsError("a record has more headers than bytes")
    if number >> 1 > HEADERS_MAX:
        raise MalformedRecordsError(f"a record has more than {HEADERS_MAX} headers")
    if headers is not None:
        headers.take(number >> 1)
    for _ in range(number >> 1):
        number, position = _number(section, position, _INT_BYTES_MAX)
        if number & 1:
            raise MalformedRecordsError("a header has no name")
        position += number >> 1
        number, position = _number(section, position, _INT_BYTES_MAX)
        if not number & 1:
            position += number >> 1
        elif number != 1:
            raise MalformedRecordsError("a header has a value of negative length")
        if position > end:
            break
    if position > end:
        raise MalformedRecordsError("the headers of a record run over its end")
    return position


class _Layout(NamedTuple):
    """Where the fields of one record end, in bytes from its start."""

    length: int
    time: int
    delta: int
    key_length: int
    key: int
    value_length: int
    value: int
    end: int

    @classmethod
    def of(cls, section: bytes, start: int, end: int) -> Self:
        length = _number_end(section, start)
        time = _number_end(section, length + 1)
        delta = _number_end(section, time)
        key_number, key_length = _number(section, delta, _INT_BYTES_MAX)
        key = key_length + (0 if key_number & 1 else key_number >> 1)
        value_number, value_length = _number(section, key, _INT_BYTES_MAX)
        value = value_length + (0 if value_number & 1 else value_number >> 1)
        return cls(*(at - start for at in (length, time, delta, key_length, key, value_length, value, end)))


def _alike(section: bytes, start: int, end: int, index: int, count: int) -> tuple[int, int]:
    """
    Return (records, where they end): those from `index` on that are sound because they look like the one before.

    That is sound and stands in [start, end). No records says nothing more than that they are to be checked one by one.
    """
    layout = _Layout.of(section, start, end)
    width = layout.delta - layout.time
    if layout.value != layout.end - 1 or width > 3:
        return 0, end  # headers are looked at one by one
    limit = (_ONE_BYTE_END, _TWO_BYTES_END, index - index % _TWO_BYTES_END + _TWO_BYTES_END)[width - 1]
    room = min(count, limit) - index
    stride = layout.end
    same = min(room, (len(section) - end) // stride)
    for at in range(layout.length):
        lengths = section[end + at : end + at + stride * (same - 1) + 1 : stride] if same > 0 else b""
        same -= len(lengths.lstrip(section[start + at : start + at + 1]))
    if same < _ALIKE_MIN:
        return 0, end
    behind = end + same * stride

    def column(at: int) -> bytes:
        return section[end + at : behind : stride]

    fixed = (*range(layout.delta, layout.key_length), *range(layout.key, layout.value_length), stride - 1)
    sound = (
        column(layout.time - 1).isascii()
        and not any(column(at).translate(None, _CONTINUED) for at in range(layout.length + 1, layout.time - 1))
        and _deltas(width, index, same) == [column(at) for at in range(layout.time, layout.delta)]
        and all(column(at) == section[start + at : start + at + 1] * same for at in fixed)
    )
    return (same, behind) if sound else (0, end)


def _number_end(section: bytes, position: int) -> int:
    while section[position] >= 0x80:
        position += 1
    return position + 1


def _deltas(width: int, index: int, count: int) -> list[bytes]:
    """Return the columns of `count` offset deltas from `index` on, all of `width` bytes."""
    if width == 1:
        return [_FIRST_OF_ONE[index : index + count]]
    first = _FIRST[index % 64 : index % 64 + count]
    if width == 2:
        return [first, _SECOND_OF_TWO[index : index + count]]
    within = index % _TWO_BYTES_END
    return [first, _SECOND[within : within + count], bytes([index // _TWO_BYTES_END]) * count]
