"""
Records that a node refused, by topic and cause: counted for the metrics, and told in the event log with the reason.

An event for each would fill the log: of one topic and cause there is at most one in EVENT_SECONDS, with their number.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from log_broker.interfaces import Cause
from log_broker.records.contracts import Fault
from log_broker.server.process.ports import HasCounters, HasEvents, Process

EVENT_SECONDS = 60.0
REASON_CHARACTERS_MAX = 500


class RefusalHost(HasCounters, HasEvents, Process, Protocol):
    """What counting refused records asks of the node."""


class Refusals:
    """One node's refused records."""

    def __init__(self, node: RefusalHost) -> None:
        self._node = node
        self._told_at: dict[tuple[str, Cause], float] = {}
        self._untold: Counter[tuple[str, Cause]] = Counter()

    def add(self, topic: str, partition: int, faults: Sequence[Fault]) -> None:
        """Take in the records because of which a batch was refused."""
        now = self._node.loop.time()
        for cause, count in Counter(fault.cause for fault in faults).items():
            place = (topic, cause)
            self._node.counters.refused[place] += count
            self._untold[place] += count
            told_at = self._told_at.get(place)
            if told_at is None or now - told_at >= EVENT_SECONDS:
                self._told_at[place] = now
                first = next(fault for fault in faults if fault.cause is cause)
                self._tell(topic, partition, cause, self._untold.pop(place), first.reason[:REASON_CHARACTERS_MAX])

    def _tell(self, topic: str, partition: int, cause: Cause, count: int, reason: str) -> None:
        records = "a record" if count == 1 else f"{count} records"
        text = f"{topic}-{partition} refused {records} ({cause}): {reason}"
        self._node.events.note(
            "records_refused", text, topic=topic, partition=partition, cause=cause.value, records=count, reason=reason
        )
