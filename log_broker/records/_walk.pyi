from collections.abc import Callable, Mapping

from log_broker.records.batch import Buffer

class AvroSkip:
    def __new__(cls, program: bytes) -> AvroSkip: ...
    def __call__(self, buffer: bytes, at: int, /) -> int: ...

def is_sound(section: bytes, count: int, headers_max: int, /) -> bool: ...
def passes(
    section: bytes,
    count: int,
    keys: Mapping[bytes, Callable[[bytes, int], int] | None] | None,
    values: Mapping[bytes, Callable[[bytes, int], int] | None] | None,
    key_required: bool,
    takes_null: bool,
    earliest: int,
    latest: int,
    /,
) -> bool: ...
def spans(section: Buffer, position: int, count: int, /) -> list[tuple[int, int, int, int, int, int, int]]: ...
