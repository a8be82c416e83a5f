"""
What a member still owes of one partition: the records that it took and that nobody has acknowledged. Pure.

A group commits one offset a partition, and says with it that all before is done. Of what is done behind that offset a
window keeps account, and writes it into the metadata that Kafka stores beside a committed offset: after a crash those
records are read again and passed over.
"""

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterator

# The number is the format's: another one is not ours to read.
PREFIX = "fluvial.acks/1:"
METADATA_MAX = 4096
"""Characters that a broker takes unless `offset.metadata.max.bytes` says otherwise."""


class Window:
    """
    One partition from its committed offset on.

    Offsets are taken in rising order and acknowledged in any. Those that never come (markers of transactions, what
    compaction took out) count as done. `committed` and `metadata` are those that the group's offset had, if it had one.
    """

    def __init__(self, committed: int | None = None, metadata: str = "") -> None:
        self._next = -1 if committed is None else committed
        # In the order of their offsets, so that the first is found at once however many there are.
        self._open: OrderedDict[int, None] = OrderedDict()
        self._runs = 0
        self._done_before = [] if committed is None else _decoded(committed, metadata)
        self._passing = 0

    @property
    def open(self) -> int:
        """How many records are taken and not acknowledged."""
        return len(self._open)

    @property
    def runs(self) -> int:
        """How many runs of neighbours these are: what the metadata grows by."""
        return self._runs

    @property
    def next(self) -> int:
        """The offset behind the last one that was taken; -1 while that is not known."""
        return self._next

    @property
    def committed(self) -> int | None:
        """The offset to commit: of the first record that is not acknowledged; None while nothing was taken."""
        return next(iter(self._open), None if self._next < 0 else self._next)

    def take(self, offset: int) -> bool:
        """
        Take the next record; whether it is to be handled, or was acknowledged before the last crash.

        Raises ValueError for an offset before one that was taken.
        """
        if offset < self._next:
            raise ValueError(f"offset {offset} comes after {self._next - 1}")
        self._next = offset + 1
        if self._was_done(offset):
            return False
        self._runs += offset - 1 not in self._open
        self._open[offset] = None
        return True

    def acknowledge(self, offset: int) -> bool:
        """Whether this record was open; it is not any more."""
        if offset not in self._open:
            return False
        del self._open[offset]
        self._runs += (offset - 1 in self._open) + (offset + 1 in self._open) - 1
        return True

    def is_open(self, offset: int) -> bool:
        """Whether the record was taken and not acknowledged."""
        return offset in self._open

    def metadata(self, characters_max: int = METADATA_MAX) -> str:
        """
        What is done behind the committed offset, in so many characters at most.

        What has no room is left out, from the end: it would be handled a second time after a crash. Empty when nothing
        is done there.
        """
        first = self.committed
        if first is None:
            return ""
        room = (characters_max - len(PREFIX)) // 4 * 3
        body = bytearray()
        for gap, done in _steps(first, [*self._done_between(), *self._done_ahead()]):
            step = _number(gap) + _number(done)
            if len(body) + len(step) > room:
                break
            body += step
        return PREFIX + base64.b64encode(body).decode() if body else ""

    def _was_done(self, offset: int) -> bool:
        while self._passing < len(self._done_before) and self._done_before[self._passing][1] <= offset:
            self._passing += 1
        return self._passing < len(self._done_before) and self._done_before[self._passing][0] <= offset

    def _done_between(self) -> Iterator[tuple[int, int]]:
        """What is done between open records and up to the next offset, as [start, end)."""
        before = None
        for offset in self._open:
            if before is not None and offset > before + 1:
                yield before + 1, offset
            before = offset
        if before is not None and self._next > before + 1:
            yield before + 1, self._next

    def _done_ahead(self) -> Iterator[tuple[int, int]]:
        """What an earlier member had acknowledged and has not come by yet."""
        for start, end in self._done_before[self._passing :]:
            if end > self._next:
                yield max(start, self._next), end


def _steps(first: int, done: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Each run of done offsets as how far it begins behind the one before, and how long it is."""
    at = first
    for start, end in done:
        yield start - at, end - start
        at = end


def _decoded(committed: int, metadata: str) -> list[tuple[int, int]]:
    """The runs [start, end) that metadata names; none if it is not ours, or damaged."""
    if not metadata.startswith(PREFIX):
        return []
    try:
        numbers = list(_numbers(base64.b64decode(metadata.removeprefix(PREFIX), validate=True)))
    except (binascii.Error, ValueError):
        return []
    runs = []
    at = committed
    for gap, length in zip(numbers[::2], numbers[1::2], strict=False):
        runs.append((at + gap, at + gap + length))
        at += gap + length
    return runs


def _number(value: int) -> bytes:
    """LEB128: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _numbers(body: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
    if shift:
        raise ValueError("the last number has no end")
