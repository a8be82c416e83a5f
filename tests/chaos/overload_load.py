"""
Idempotent producers with short queues, in a process of their own: `python tests/chaos/overload_load.py JSON`.

They offer records whether they are taken or not, as a source does that cannot wait. Each line of stdin is a `Task`;
the answer is a line of JSON, a `Done`. At the end of stdin a byte for each record that was taken is written to `file`:
1 where it was acknowledged.
"""

import json
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Message, Producer

ID = struct.Struct(">HQ")  # which process, which record
PACE_SECONDS = 0.002
OFFERED_AT_ONCE_MAX = 500
QUEUE_KBYTES = 8 * 1024
FLUSH_SECONDS_MAX = 240.0


class Load(NamedTuple):
    """Which producers of which process; `number` stands in the key of each record."""

    address: str
    topic: str
    number: int
    producers: int
    value_bytes: int
    file: str


class Task(NamedTuple):
    """Records a second to offer for so long; without a rate as many as are taken. No seconds: wait for all of them."""

    rate: float | None
    seconds: float


class Done(NamedTuple):
    """What became of what was offered; acknowledgements are those that came meanwhile."""

    offered: int
    refused: int  # by a producer whose queue was full
    acknowledged: int
    failures: list[str]
    latencies_ms: list[float]


class Source:
    """Offers records to its producers in turn."""

    def __init__(self, load: Load) -> None:
        settings = {
            "bootstrap.servers": load.address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": QUEUE_KBYTES,
            "on_delivery": self._told,
            "log_level": 2,
        }
        self._load = load
        self._producers = [Producer(settings) for _ in range(load.producers)]
        self._value = bytes(load.value_bytes)
        self.taken = bytearray()  # one of each record, 1 once it is acknowledged
        self._offered = 0
        self._since = Done(0, 0, 0, [], [])

    def work(self, task: Task) -> Done:
        self._offered = 0
        self._since = Done(0, 0, 0, [], [])
        if task.seconds:
            self._offer(task)
        else:
            for producer in self._producers:
                producer.flush(FLUSH_SECONDS_MAX)
        return self._since._replace(offered=self._offered)

    def _offer(self, task: Task) -> None:
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < task.seconds:
            due = OFFERED_AT_ONCE_MAX if task.rate is None else int(passed * task.rate) - self._offered
            for _ in range(min(due, OFFERED_AT_ONCE_MAX)):
                if not self._is_taken() and task.rate is None:
                    break
            for producer in self._producers:
                producer.poll(0)
            if due < OFFERED_AT_ONCE_MAX or task.rate is None:
                time.sleep(PACE_SECONDS)

    def _is_taken(self) -> bool:
        producer = self._producers[self._offered % len(self._producers)]
        self._offered += 1
        try:
            producer.produce(self._load.topic, self._value, ID.pack(self._load.number, len(self.taken)))
        except BufferError:
            self._since = self._since._replace(refused=self._since.refused + 1)
            return False
        self.taken.append(0)
        return True

    def _told(self, error: object, message: Message) -> None:
        if error is not None:
            self._since.failures.append(str(error))
            return
        _, record = ID.unpack(message.key())
        self.taken[record] = 1
        self._since = self._since._replace(acknowledged=self._since.acknowledged + 1)
        self._since.latencies_ms.append(message.latency() * 1000)


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    source = Source(load)
    for line in sys.stdin:
        print(json.dumps(source.work(Task(*json.loads(line)))), flush=True)
    Path(load.file).write_bytes(source.taken)


if __name__ == "__main__":
    main()
