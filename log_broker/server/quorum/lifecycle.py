"""
A broker's standing with the controller: registered, alive, leaving (KIP-631).

Each process registers under an incarnation of its own and is given a broker epoch. It takes up its partitions when it
has replayed its own registration, for then it knows all that was decided before it came. Heartbeats keep its session;
when they were not heard for too long it registers again, under a new epoch.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID, uuid4

from log_broker.core.cluster.features import misfit, told_of
from log_broker.core.cluster.records import ToldListeners
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.process.log_limiter import RateLimitedLog
from log_broker.server.process.ports import Cluster, HasEvents, HasFeatures, HasLease, Process
from log_broker.server.quorum.ports import HasAuthority, HasQuorum
from log_broker.wire.apis import ApiKey
from log_broker.wire.quorum import as_uuid

_log = logging.getLogger(__name__)

REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
ASK_SECONDS_MAX = 4.5  # half a session: another heartbeat fits into the rest
RETRY_SECONDS = 0.1
LEAVE_SECONDS_MAX = 10.0
LEAVE_ASK_SECONDS_MAX = 1.0  # all may be stopping, and then the last ones find no controller
_LINK = "lifecycle"
_GONE = frozenset({ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED})
_FATAL = frozenset({ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})


class Disk(Protocol):
    """The disk that the logs are on."""

    on_changed: Callable[[], None]

    @property
    def takes_writes(self) -> bool: ...


class LifecycleLogs(Protocol):
    """The logs, as they were left when the node was stopped, and their disk."""

    @property
    def disk(self) -> Disk: ...

    on_epoch_lost: Callable[[], None]

    @property
    def stopped_epoch(self) -> int:
        """The broker epoch that they were closed in, -1 after a crash."""
        ...


class LifecycleHost(Cluster, HasAuthority, HasEvents, HasFeatures, HasLease, HasQuorum, Process, Protocol):
    """What being a broker of the cluster asks of the node."""

    @property
    def directory_id(self) -> str: ...

    @property
    def told_listeners(self) -> ToldListeners:
        """Where clients of each listener reach this broker, the one for other nodes first."""
        ...

    @property
    def logs(self) -> LifecycleLogs: ...


class BrokerLifecycle:
    """One broker process, from its registration to its leaving."""

    def __init__(self, node: LifecycleHost) -> None:
        self._node = node
        self.incarnation: UUID = uuid4()
        self.epoch = -1
        self._urgent = asyncio.Event()  # the next heartbeat is to be sent at once
        self._beating: asyncio.Task[None] | None = None
        self._wants_fence = False
        node.logs.disk.on_changed = self._disk_changed
        node.logs.on_epoch_lost = self._epoch_lost

    async def register(self) -> None:
        """Register, and return when this node has replayed that; waits for a controller as long as it takes."""
        await self._register()
        while not self._knows_itself():
            await self._node.quorum.changes.wait(RETRY_SECONDS)

    async def come_alive(self) -> None:
        """Send heartbeats from now on; return when this node knows that it may lead."""
        self._beating = self._node.loop.create_task(self._beat())
        node = self._node
        while not (node.cluster.is_alive(node.static_config.node_id) and node.lease.valid):
            await self._node.quorum.changes.wait(RETRY_SECONDS)

    async def leave(self) -> None:
        """Tell the controller that this broker stops, and wait until it has taken its leaderships elsewhere."""
        node_id = self._node.static_config.node_id
        alive = self._beating is not None
        await self.stop()
        # Others lead as soon as the controller has decided that, which may be before it is known here.
        self._node.lease.ended()
        # A broker that is alone has nobody to hand anything to.
        if not alive or all(broker.node_id == node_id for broker in self._node.cluster.alive_brokers()):
            return
        deadline = self._node.loop.time() + LEAVE_SECONDS_MAX
        try:
            while self._node.loop.time() < deadline:
                answer = await self._ask_to_leave()
                # Who has been fenced already, and is to register again, leads nothing any more.
                if answer is None or answer.should_shut_down or answer.error_code in _GONE:
                    return
                await self._node.quorum.changes.wait(RETRY_SECONDS)
        except BrokerError as error:
            _log.warning("the controller was not told that this broker stops: %s", error)

    async def _ask_to_leave(self) -> Any:
        """Return the controller's answer, None where nobody is left to give one; raises BrokerError."""
        quorum = self._node.quorum
        asking = self._node.loop.create_task(
            self._heartbeat(leaves=True, timeout_seconds=LEAVE_ASK_SECONDS_MAX), name="leaving"
        )
        try:
            while not asking.done():
                if self._all_leave() and quorum.leader_id is None:
                    return None
                change = quorum.changes.next()
                await asyncio.wait((asking, change), return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            return asking.result()
        finally:
            asking.cancel()

    def _all_leave(self) -> bool:
        """Whether all other brokers are gone or about to go, so that there is nobody to hand anything to."""
        node_id = self._node.static_config.node_id
        return all(each.is_leaving or each.node_id == node_id for each in self._node.cluster.alive_brokers())

    def image_changed(self) -> None:
        """Tell the controller at once how far this broker is while another leaves, who waits for the others to know."""
        node_id = self._node.static_config.node_id
        if any(broker.is_leaving and broker.node_id != node_id for broker in self._node.cluster.brokers.values()):
            self._urgent.set()

    def _disk_changed(self) -> None:
        """Tell the controller at once that the disk takes no writes, or takes them again."""
        node = self._node
        who = f"node {node.static_config.node_id}"
        if node.logs.disk.takes_writes:
            node.events.note("disk_writable", f"the disk of {who} takes writes again")
        else:
            text = f"the disk of {who} takes no writes: others lead in its place where they can"
            node.events.note("disk_not_writable", text)
        self._urgent.set()

    def _epoch_lost(self) -> None:
        """Be fenced and register again, as after a start: what is led here gets other leaders, or other epochs."""
        node_id = self._node.static_config.node_id
        self._node.events.note("epoch_lost", f"a disk error took records that node {node_id} led: it registers again")
        self._wants_fence = True
        self._urgent.set()

    async def stop(self) -> None:
        """Send no more heartbeats."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait((self._beating,))
            self._beating = None

    def _knows_itself(self) -> bool:
        broker = self._node.cluster.brokers.get(self._node.static_config.node_id)
        return broker is not None and broker.incarnation == self.incarnation.hex and broker.epoch >= self.epoch

    async def _register(self) -> None:
        node = self._node
        config = node.static_config
        values = {
            "broker_id": config.node_id,
            "cluster_id": node.cluster_id,
            "incarnation_id": self.incarnation,
            "listeners": [
                {"name": name, "host": host, "port": port, "security_protocol": protocol}
                for name, host, port, protocol in node.told_listeners
            ],
            "features": [
                {"name": name, "min_supported_version": lowest, "max_supported_version": highest}
                for name, lowest, highest in told_of(node.features)
            ],
            "rack": config.broker_rack or None,
            "log_dirs": (as_uuid(node.directory_id),),
            "previous_broker_epoch": node.logs.stopped_epoch,
        }
        said: ErrorCode | None = None
        while True:
            try:
                answer = await node.authority.ask_controller(
                    ApiKey.BROKER_REGISTRATION,
                    REGISTRATION_VERSION,
                    values,
                    timeout_seconds=ASK_SECONDS_MAX,
                    purpose=_LINK,
                )
                error = ErrorCode(answer.error_code)
                if error is ErrorCode.NONE:
                    self.epoch = answer.broker_epoch
                    return
            except BrokerError as failure:
                error = failure.code
            if error in _FATAL:
                raise BrokerError(error, await self._why_refused(error))
            if error is not said:
                _log.warning("node %d is not registered yet: %s", config.node_id, error.name)
                said = error
            await asyncio.sleep(RETRY_SECONDS)

    async def _why_refused(self, error: ErrorCode) -> str:
        """Say what the answer to a registration has no words for."""
        node = self._node
        who = f"node {node.static_config.node_id}"
        if error is ErrorCode.UNSUPPORTED_VERSION:
            with contextlib.suppress(BrokerError):
                values = {"client_software_name": "fluvial", "client_software_version": "0"}
                told = await node.authority.ask_controller(ApiKey.API_VERSIONS, 3, values, purpose=_LINK)
                levels = {each.name: each.max_version_level for each in told.finalized_features}
                if (reason := misfit(who, node.features, levels)) is not None:
                    return reason
        return f"the controller refused {who}"

    async def _beat(self) -> None:
        node = self._node
        trouble = RateLimitedLog(_log, node.loop.time)
        while True:
            pause = node.config.broker_heartbeat_interval_ms / 1000
            self._urgent.clear()
            sent_ms = int(node.loop.time() * 1000)
            try:
                answer = await self._heartbeat(leaves=False)
                if answer.error_code in _GONE:
                    self._wants_fence = False
                    node.lease.ended()
                    _log.warning("node %d lost its session and registers again", node.static_config.node_id)
                    await self._register()
                    pause = 0
                elif answer.error_code:
                    trouble.failed("a heartbeat was refused: %s", ErrorCode(answer.error_code).name)
                elif answer.is_fenced:
                    self._wants_fence = False
                    trouble.recovered("heartbeats are answered again")
                    node.lease.ended()
                    # What it is behind by it will have replayed in a moment.
                    await node.quorum.changes.wait(RETRY_SECONDS)
                    pause = 0
                else:
                    trouble.recovered("heartbeats are answered again")
                    if answer.is_caught_up:
                        node.lease.renewed(sent_ms)
                    else:
                        await node.quorum.changes.wait(RETRY_SECONDS)
                        pause = 0
            except BrokerError as error:
                trouble.failed("a heartbeat was not answered: %s", error)
                pause = RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._urgent.wait()

    async def _heartbeat(self, *, leaves: bool, timeout_seconds: float = ASK_SECONDS_MAX) -> Any:
        takes_writes = self._node.logs.disk.takes_writes
        if not takes_writes or self._wants_fence:
            # Others lead as soon as the controller has decided that, which may be before it is known here.
            self._node.lease.ended()
        values = {
            "broker_id": self._node.static_config.node_id,
            "broker_epoch": self.epoch,
            "current_metadata_offset": self._node.cluster.version,
            "want_fence": self._wants_fence,
            "want_shut_down": leaves,
            "offline_log_dirs": () if takes_writes else (as_uuid(self._node.directory_id),),
        }
        return await self._node.authority.ask_controller(
            ApiKey.BROKER_HEARTBEAT, HEARTBEAT_VERSION, values, timeout_seconds=timeout_seconds, purpose=_LINK
        )
