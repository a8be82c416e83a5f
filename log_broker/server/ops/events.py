"""
The cluster's diary: what happened to nodes, leaders and records, as JSON in the internal topic `__fluvial_events`.

`note` is for whoever sees something that the metadata do not show, such as a truncation. What they do show (elections,
in-sync replicas, nodes that come and go, moves) is told from each change of the image, by the active controller alone.
A cluster of one node has no such history and gets no such topic.

Best effort: events wait in a bounded queue until they can be written, and are gone if the node stops before that.
"""

import asyncio
import json
import logging
from collections import deque
from itertools import islice
from typing import Any, Protocol
from uuid import uuid4

from log_broker.config.keys import DAY_MS
from log_broker.core.cluster.controller import CreateTopic
from log_broker.core.cluster.events import View, events_between, view_of
from log_broker.core.cluster.image import EVENTS_TOPIC, BrokerImage
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.record import build_batch
from log_broker.server.net.peers import ADMIN_CLIENT_ID, PeerLink
from log_broker.server.net.ports import HasPeers
from log_broker.server.partitions.ports import EnsuresTopics, Partitions
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.server.process.ports import Cluster, Process
from log_broker.server.quorum.controller import HasController
from log_broker.server.quorum.ports import HasAuthority
from log_broker.wire.apis import ApiKey

QUEUE_MAX = 2_000
BATCH_MAX = 50
BATCH_BYTES_MAX = 512 * 1024
RETRY_SECONDS = 0.25
RETRY_SECONDS_MAX = 5.0
WRITE_SECONDS_MAX = 10.0
RETENTION_MS = 30 * DAY_MS
PRODUCE_VERSION = 9
OVERRIDES = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}

_log = logging.getLogger(__name__)


class EventHost(Cluster, HasAuthority, HasController, HasPeers, Partitions, Process, EnsuresTopics, Protocol):
    """What writing events down asks of the node."""


class Events:
    """One node's part of the diary. Neither `note` nor what it starts can fail or delay who calls."""

    def __init__(self, node: EventHost) -> None:
        self._node = node
        self._queue: deque[dict[str, Any]] = deque()
        self._unkept = 0
        self._writes = False
        self._started = False
        self._seen: View | None = None
        self._former = -1  # the active controller before this node became it, -1 where none is known
        self._run_id = uuid4().hex[:12]
        self._noted = 0
        self._link: PeerLink | None = None
        self._trouble = RateLimitedLog(_log, node.loop.time, logging.INFO)

    @property
    def waiting(self) -> int:
        """How many events are not written yet."""
        return len(self._queue)

    def start(self) -> None:
        """Begin to write what has been noted; the node's authority runs."""
        self._started = True
        self._wake()

    def stop(self) -> None:
        """Let go of the connection; what waits is lost with the node."""
        self._started = False
        if self._link is not None:
            self._link.end()

    def note(self, kind: str, text: str, **fields: Any) -> None:
        """Put an event into the diary: `text` for people, `fields` (JSON) for programs. Returns at once."""
        if len(self._queue) >= QUEUE_MAX:
            # The first of what went wrong explains the rest, so the newest are not kept.
            self._unkept += 1
            return
        node = self._node
        self._noted += 1
        event = {
            "time_ms": node.clock_ms(),
            "node": node.config.node_id,
            "kind": kind,
            "text": text,
            # A write that is tried again may be there twice: readers tell by the id.
            "id": f"{node.config.node_id}-{self._run_id}-{self._noted}",
        }
        self._queue.append({**fields, **event})
        self._wake()

    def image_changed(self) -> None:
        """Note what the image shows that it did not show before, if this node is the active controller."""
        node, before = self._node, self._seen
        self._seen = after = view_of(node.cluster)
        controller = node.controller
        if controller is None:
            self._former = node.authority.controller_id
        if before is None or controller is None or max(len(after.brokers), len(before.brokers)) < 2:
            return
        session_timeout_ms = node.config.broker_session_timeout_ms
        for event in events_between(
            before, after, session_timeout_ms=session_timeout_ms, fenced_because=controller.fenced_because
        ):
            self.note(event.kind, event.text, **event.fields)

    def controller_began(self, epoch: int) -> None:
        """Note that this node is the active controller now."""
        node_id, former = self._node.config.node_id, self._former
        if len(self._node.cluster.brokers) > 1:
            was = f" (was node {former})" if former != -1 else ""
            text = f"node {node_id} is the active controller from epoch {epoch} on{was}"
            self.note("controller_changed", text, controller=node_id, epoch=epoch, former=former)

    def _wake(self) -> None:
        if self._started and self._queue and not self._writes:
            self._writes = True
            self._node.run(self._write())

    async def _write(self) -> None:
        """Write until nothing waits; there is one such task at most."""
        pause = RETRY_SECONDS
        try:
            while self._queue:
                batch, taken = self._batch()
                try:
                    if batch:
                        await self._append(batch)
                except BrokerError as error:
                    self._trouble.failed("events wait to be written: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, RETRY_SECONDS_MAX)
                    continue
                pause = RETRY_SECONDS
                for _ in range(taken):
                    self._queue.popleft()
                self._note_unkept()
        finally:
            self._writes = False

    def _batch(self) -> tuple[list[bytes], int]:
        """Return the next events as bytes, and how many of the queue they stand for."""
        batch: list[bytes] = []
        size = taken = 0
        for event in islice(self._queue, BATCH_MAX):
            try:
                value = json.dumps(event, separators=(",", ":"), ensure_ascii=False, default=str).encode()
            except (TypeError, ValueError) as error:
                _log.error("an event of kind %s cannot be written: %s", event["kind"], error)
                taken += 1
                continue
            if batch and size + len(value) > BATCH_BYTES_MAX:
                break
            batch.append(value)
            size += len(value)
            taken += 1
        return batch, taken

    def _note_unkept(self) -> None:
        if self._unkept:
            count, self._unkept = self._unkept, 0
            self.note("events_lost", f"{count} events were not kept: too many waited to be written", count=count)

    async def _append(self, values: list[bytes]) -> None:
        """Append on the topic's leader, wherever that is; raises BrokerError."""
        node = self._node
        await node.ensure_topic(
            CreateTopic(
                name=EVENTS_TOPIC,
                topic_id=uuid4().hex,
                partitions=1,
                overrides=OVERRIDES,
            )
        )
        leader = node.cluster.leader_of(EVENTS_TOPIC, 0)
        if leader is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{EVENTS_TOPIC} has no leader")
        if leader.node_id != node.config.node_id:
            await self._send(leader, values)
            return
        runtime = node.logs.get(EVENTS_TOPIC, 0)
        if runtime is None:
            raise BrokerError(node.absence_of(EVENTS_TOPIC, 0), f"{EVENTS_TOPIC} is not open here")
        await runtime.own_appends.records([(None, value) for value in values])

    async def _send(self, leader: BrokerImage, values: list[bytes]) -> None:
        link = self._link_to(f"{leader.host}:{leader.port}")
        now_ms = self._node.clock_ms()
        records = bytes(build_batch((now_ms, None, value, ()) for value in values))
        data = {"name": EVENTS_TOPIC, "partition_data": ({"index": 0, "records": records},)}
        timeout_ms = int(WRITE_SECONDS_MAX * 1000)
        answer = await link.ask(
            ApiKey.PRODUCE,
            PRODUCE_VERSION,
            {"transactional_id": None, "acks": -1, "timeout": timeout_ms, "topic_data": (data,)},
            timeout_seconds=2 * WRITE_SECONDS_MAX,
        )
        (partition,) = answer.responses[0].partition_responses
        if partition.error_code:
            raise BrokerError(ErrorCode(partition.error_code), f"node {leader.node_id} did not take events")

    def _link_to(self, address: str) -> PeerLink:
        if self._link is None or self._link.address != address:
            if self._link is not None:
                self._link.end()
            self._link = PeerLink(address, client_id=ADMIN_CLIENT_ID, dialer=self._node.peers.dialer)
        return self._link
