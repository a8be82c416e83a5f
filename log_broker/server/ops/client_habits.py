"""
Clients that defeat batching: a request for each record, or fetches without end that find nothing.

Looked at for two seconds of each minute, so that requests cost no more for it. A client is named once an hour at most,
by the `client.id` that it goes by, with the setting that mends it.
"""

import asyncio
import logging
import struct
from collections.abc import Iterable
from typing import Protocol

from log_broker.records.batch import HEADER_BYTES, Buffer
from log_broker.server.process.ports import Cluster, HasEvents, HasMachine, Process

LOOK_SECONDS = 2.0
PAUSE_SECONDS = 58.0
REQUESTS_A_SECOND = 100
RECORDS_A_REQUEST = 2.0
EMPTY_SHARE = 0.9
SILENT_SECONDS = 3600.0  # about a client that was named
CLIENTS_MAX = 1_000  # ids are whatever clients say

_RECORD_COUNT = struct.Struct(">i")
_RECORD_COUNT_AT = HEADER_BYTES - _RECORD_COUNT.size
_log = logging.getLogger(__name__)


class HabitsHost(Cluster, HasEvents, HasMachine, Process, Protocol):
    """What watching clients asks of the node."""


class _Seen:
    """What one client did in one look."""

    __slots__ = ("empty", "fetches", "produces", "records")

    def __init__(self) -> None:
        self.produces = self.records = self.fetches = self.empty = 0


class ClientHabits:
    """What clients do while `is_looking`; `produced` and `fetched` are called only then."""

    def __init__(self, node: HabitsHost) -> None:
        self._node = node
        self.is_looking = False
        self._seen: dict[str, _Seen] = {}
        self._named: dict[str, float] = {}  # when
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look, where time is real."""
        if self._node.machine.cpu_seconds() is not None:
            self._timer = self._node.loop.call_later(PAUSE_SECONDS, self._next)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        if self.is_looking:
            self.judge(LOOK_SECONDS)
        else:
            self.look()
        self._timer = self._node.loop.call_later(LOOK_SECONDS if self.is_looking else PAUSE_SECONDS, self._next)

    def look(self) -> None:
        """Begin to count."""
        self._seen.clear()
        self.is_looking = True

    def produced(self, client_id: str | None, batches: Iterable[Buffer]) -> None:
        """Count a Produce request and the records that its batches say that they have."""
        seen = self._of(client_id)
        if seen is not None:
            seen.produces += 1
            for batch in batches:
                if len(batch) >= HEADER_BYTES:
                    seen.records += max(_RECORD_COUNT.unpack_from(batch, _RECORD_COUNT_AT)[0], 0)

    def fetched(self, client_id: str | None, size: int) -> None:
        """Count a Fetch that is answered with so many bytes of records."""
        seen = self._of(client_id)
        if seen is not None:
            seen.fetches += 1
            seen.empty += not size

    def _of(self, client_id: str | None) -> _Seen | None:
        name = client_id or ""
        seen = self._seen.get(name)
        if seen is None and len(self._seen) < CLIENTS_MAX:
            seen = self._seen[name] = _Seen()
        return seen

    def judge(self, seconds: float) -> None:
        """Stop counting, and name those whose requests of so many seconds carry next to nothing."""
        self.is_looking = False
        now = self._node.loop.time()
        self._named = {name: at for name, at in self._named.items() if now - at < SILENT_SECONDS}
        for client_id, seen in self._seen.items():
            if client_id not in self._named and len(self._named) < CLIENTS_MAX:
                self._judge(client_id, seen, seconds, now)
        self._seen.clear()

    def _judge(self, client_id: str, seen: _Seen, seconds: float, now: float) -> None:
        who = f"client {client_id[:100]!r}"
        produces, fetches = seen.produces / seconds, seen.fetches / seconds
        if produces >= REQUESTS_A_SECOND and seen.records / seen.produces < RECORDS_A_REQUEST:
            each = seen.records / seen.produces
            text = (
                f"{who} sends {produces:.0f} Produce requests a second with {each:.1f} records each: "
                "set linger.ms=5, and send on without waiting for each record"
            )
            self._tell(client_id, text, now, requests_per_second=round(produces), records_per_request=round(each, 1))
        elif fetches >= REQUESTS_A_SECOND and seen.empty > EMPTY_SHARE * seen.fetches:
            share = 100 * seen.empty / seen.fetches
            text = (
                f"{who} sends {fetches:.0f} Fetch requests a second, {share:.0f} % of them for nothing: raise "
                "fetch.max.wait.ms (fetch.wait.max.ms in librdkafka)"
            )
            self._tell(client_id, text, now, requests_per_second=round(fetches), empty=seen.empty)

    def _tell(self, client_id: str, text: str, now: float, **fields: float) -> None:
        self._named[client_id] = now
        _log.warning("%s", text)
        if len(self._node.cluster.brokers) > 1:
            self._node.events.note("client_defeats_batching", text, client_id=client_id[:100], **fields)
