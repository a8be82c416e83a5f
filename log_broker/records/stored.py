"""Records that lie in a file and are read, or handed to a socket unread, when they are sent."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from log_broker.records.batch import Buffer

STORED_BYTES_MIN = 64 * 1024  # less is read, and leaves with what is around it in one system call


class Stored(Protocol):
    """Bytes of a file; good for the turn of the event loop in which they were found."""

    def __len__(self) -> int: ...

    def read(self, start: int = 0) -> Sequence[bytes]:
        """Return all of it from `start` on in pieces; raises OSError."""
        ...

    def send(self, descriptor: int) -> int:
        """Have a socket take what it does at once, unread; return how many bytes that were. Raises OSError."""
        ...


Chunk = Buffer | Stored


def read_all(chunks: Iterable[Chunk]) -> list[Buffer]:
    """Return the bytes, of what is stored as well; raises OSError."""
    found: list[Buffer] = []
    for chunk in chunks:
        if isinstance(chunk, Buffer):
            found.append(chunk)
        else:
            found.extend(chunk.read())
    return found
