"""What a node counts as it serves: plain numbers, raised in the event loop and read there by whoever exports them."""

from collections import Counter

from log_broker.interfaces import Cause
from log_broker.wire.apis import APIS


class Durations:
    """
    How long something took, in buckets whose bounds double.

    Bucket i counts what took less than 2^i µs and does not fit bucket i - 1, so a measurement costs one shift.
    """

    __slots__ = ("buckets", "sum_micros")

    def __init__(self) -> None:
        self.buckets = [0] * 64
        self.sum_micros = 0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def add(self, seconds: float) -> None:
        micros = int(seconds * 1e6)
        self.buckets[micros.bit_length()] += 1
        self.sum_micros += micros


class Counters:
    """One node's counts since it started; requests by api key, from their arrival to the write of their response."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "refused",
        "requests",
        "sign_ins",
        "sign_ins_refused",
        "unclean_elections",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections = 0
        self.sign_ins = 0
        self.sign_ins_refused = 0
        self.refused: Counter[tuple[str, Cause]] = Counter()  # records that were the cause, by topic
        self.unclean_elections = 0  # decided here, while this node was the active controller
        self.requests = {int(api_key): Durations() for api_key in APIS}
