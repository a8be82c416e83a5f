"""What a node counts as it serves: plain numbers, raised in the event loop and read there by whoever exports them."""

from log_broker.wire.apis import APIS, ApiKey

_BUCKETS = 40  # the last begins at 2^38 µs, which is three days


class Durations:
    """
    How long something took, in buckets whose bounds double.

    Bucket i counts what took less than 2^i µs and does not fit bucket i - 1, so a measurement costs one shift.
    """

    __slots__ = ("buckets", "sum_seconds")

    def __init__(self) -> None:
        self.buckets = [0] * _BUCKETS
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1
        self.sum_seconds += seconds


class Counters:
    """One node's counts since it started. Durations run from the arrival of a request to its response's write."""

    __slots__ = ("bytes_in", "bytes_out", "connections", "durations", "requests")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.requests: dict[int, int] = dict.fromkeys(APIS, 0)
        self.durations: dict[int, Durations] = {ApiKey.PRODUCE: Durations(), ApiKey.FETCH: Durations()}
