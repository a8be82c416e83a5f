"""Whole batches where they lie in a segment's file, for who sends them on."""

import errno

from log_broker.storage.segment_files import SegmentFiles

# Less than the C library maps for itself (`server.process.memory`): such memory has each of its pages faulted in anew.
READ_BYTES = 1024 * 1024


class FilePart:
    """Implements `records.stored.Stored`."""

    __slots__ = ("files", "position", "size")

    def __init__(self, files: SegmentFiles, position: int, size: int) -> None:
        self.files = files
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def whole(self) -> bytes:
        """Return all of it in one piece; raises OSError."""
        return self.files.log.read_at(self.position, self.size)

    def read(self, start: int = 0) -> list[bytes]:
        """Return all of it from `start` on in pieces; raises OSError."""
        file, end = self.files.log, self.position + self.size
        pieces = [file.read_at(at, min(READ_BYTES, end - at)) for at in range(self.position + start, end, READ_BYTES)]
        if sum(map(len, pieces)) < self.size - start:
            raise OSError(errno.EIO, "the file has become shorter", str(self.files.path()))
        return pieces

    def send(self, descriptor: int) -> int:
        """Have a socket take what it does at once; return how many bytes that were. Raises OSError."""
        return self.files.log.send_at(self.position, self.size, descriptor)
