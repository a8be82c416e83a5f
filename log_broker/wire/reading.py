"""A cursor over a request body, for the requests that are read by hand."""

import struct

from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.varint import read_uvarint

# Elements of arrays and tagged fields in one message. Each takes hundreds of bytes of memory and microseconds of the
# event loop, and may take a single byte on the wire. How many a request may have stands in `apis`.
ELEMENTS_MAX = 200_000
STRING_BYTES_MAX = 2**15 - 1  # in every version, as in Kafka: names are hashed, looked up and kept

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class MalformedRequestError(BrokerError):
    """The bytes are not a request of this api and version; there is nothing to answer it with."""

    def __init__(self, reason: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, reason)


class Reader:
    """
    Reads the primitive types of the protocol from the front on.

    Raises struct.error, IndexError or ValueError when the bytes end early or a length is impossible. Array lengths are
    checked against the bytes that are left, so a length alone makes nobody reserve memory, and together against
    `elements_max`.
    """

    __slots__ = ("_body", "_elements", "_elements_max", "_flexible", "position")

    def __init__(self, body: memoryview, *, flexible: bool, elements_max: int = ELEMENTS_MAX) -> None:
        self._body = body
        self._flexible = flexible
        self._elements = 0
        self._elements_max = elements_max
        self.position = 0

    @property
    def elements(self) -> int:
        """How many elements of arrays and tagged fields there were so far."""
        return self._elements

    def int8(self) -> int:
        value: int = self._body[self.position]
        self.position += 1
        return value - 256 if value > 127 else value

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self._body, self.position)[0]
        self.position += 4
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack_from(self._body, self.position)[0]
        self.position += 8
        return value

    def numbers(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read several numbers that stand behind one another."""
        values = layout.unpack_from(self._body, self.position)
        self.position += layout.size
        return values

    def array_length(self) -> int:
        """Read the number of elements; a null array has none."""
        count = self._compact_length() if self._flexible else self.int32()
        return self._counted(count) if count > 0 else 0

    def string(self) -> bytes:
        """Read a string that must not be null, as its UTF-8 bytes."""
        value = self.nullable_string()
        if value is None:
            raise ValueError("a string is null that must not be")
        return value

    def nullable_string(self) -> bytes | None:
        if not self._flexible:
            (length,) = _INT16.unpack_from(self._body, self.position)
            self.position += 2
        elif 0 < (first := self._body[self.position]) < 0x80:  # as good as always
            start, self.position = self.position + 1, self.position + first
            if self.position > len(self._body):
                raise ValueError(f"a string of {first - 1} bytes is cut short")
            return bytes(self._body[start : self.position])
        else:
            length = self._compact_length()
            if length > STRING_BYTES_MAX:
                raise ValueError(f"a string of {length} bytes")
        view = self._take(length)
        return None if view is None else bytes(view)

    def nullable_bytes(self) -> memoryview | None:
        """Return a view into the request."""
        return self._take(self._compact_length() if self._flexible else self.int32())

    def tagged_fields(self) -> None:
        """Skip the tagged fields of a flexible version: none of them changes what the broker does."""
        if not self._flexible:
            return
        if self._body[self.position] == 0:  # as good as always
            self.position += 1
            return
        count, self.position = read_uvarint(self._body, self.position)
        for _ in range(self._counted(count)):
            _, self.position = read_uvarint(self._body, self.position)
            size, self.position = read_uvarint(self._body, self.position)
            self._take(size)

    def read_tagged_fields(self) -> list[tuple[int, memoryview]]:
        """Read the tagged fields of a flexible version as (tag, content)."""
        fields = []
        count, self.position = read_uvarint(self._body, self.position)
        for _ in range(self._counted(count)):
            tag, self.position = read_uvarint(self._body, self.position)
            size, self.position = read_uvarint(self._body, self.position)
            content = self._take(size)
            assert content is not None, "an unsigned size is not that of null"
            fields.append((tag, content))
        return fields

    def _counted(self, count: int) -> int:
        """Add to the elements of this request and return how many these are."""
        if count > 0:
            self._elements += count
            if count > len(self._body) - self.position:
                raise ValueError(f"an array of {count} elements in {len(self._body) - self.position} bytes")
            if self._elements > self._elements_max:
                raise ValueError(f"{self._elements} elements or more, and {self._elements_max} are taken at most")
        return count

    def _compact_length(self) -> int:
        first: int = self._body[self.position]
        if first < 0x80:  # as good as always
            self.position += 1
            return first - 1
        length, self.position = read_uvarint(self._body, self.position)
        return length - 1

    def _take(self, length: int) -> memoryview | None:
        if length < 0:
            if length != -1:
                raise ValueError(f"a length of {length}")
            return None
        start = self.position
        end = start + length
        if end > len(self._body):
            raise ValueError(f"{length} bytes announced and {len(self._body) - start} left")
        self.position = end
        return self._body[start:end]
