"""
One broker node: its logs, its image of the cluster, its groups and its connections.

What the cluster has agreed on is the log of the metadata quorum, which every node replays into its image. One voter is
the active controller: it alone decides, and the others pass on to it what only it can decide. A single node is a
cluster of one and runs the same code.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from log_broker.config.broker import BrokerConfig, TopicConfig
from log_broker.core.cluster.access_image import ClusterUsers
from log_broker.core.cluster.features import SUPPORTED, Ranges
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import ToldListeners, UserScramCredentialRecord
from log_broker.core.fetch.session import FetchSessions
from log_broker.core.raft.lease import Lease
from log_broker.core.security.authorizer import authorizer_of, super_users_of
from log_broker.core.security.listeners import listeners_of
from log_broker.core.security.nodes import NodePrincipals
from log_broker.core.security.users import FirstOf, Nobody, Users
from log_broker.interfaces import RecordValidator
from log_broker.server.coordinators.groups import GroupCoordinator
from log_broker.server.coordinators.transactions import TransactionCoordinator
from log_broker.server.net.answer_cache import AnswerCache
from log_broker.server.net.connections import Connections
from log_broker.server.net.dispatch import dispatch, dispatch_while_starting
from log_broker.server.net.listeners import Listeners
from log_broker.server.net.memory_budget import MemoryBudget
from log_broker.server.net.peers import peers_of
from log_broker.server.net.slots import Slot, SlotOwner
from log_broker.server.ops.client_habits import ClientHabits
from log_broker.server.ops.events import Events
from log_broker.server.ops.loop_lag import LoopLag
from log_broker.server.ops.quarantine import Quarantine
from log_broker.server.partitions.ack_deadlines import AckDeadlines
from log_broker.server.partitions.log_manager import LogManager
from log_broker.server.partitions.replica import Membership
from log_broker.server.process.counters import Counters
from log_broker.server.process.machine import Machine, RealMachine, wall_clock_ms
from log_broker.server.process.tasks import Tasks
from log_broker.server.process.turns import OneATurn
from log_broker.server.quorum.authority import Authority
from log_broker.server.quorum.controller import Controller
from log_broker.server.quorum.first_users import first_users
from log_broker.server.quorum.founding import identity_of, open_quorum
from log_broker.server.quorum.joining import Joining
from log_broker.server.quorum.lifecycle import BrokerLifecycle
from log_broker.server.quorum.liveness import Liveness
from log_broker.server.quorum.membership import tell_address
from log_broker.server.quorum.meta_properties import (
    MetaProperties,
    write_meta_properties,
)
from log_broker.server.quorum.producer_ids import ProducerIds
from log_broker.server.quorum.quorum import Quorum
from log_broker.server.quorum.topic_maker import TopicMaker
from log_broker.server.replication.absence import absence_of
from log_broker.server.replication.manager import ReplicaManager
from log_broker.server.replication.replica_fetches import ReplicaFetches
from log_broker.wire.framing import STAGING_BYTES, RequestHeader

_log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 5.0


class Node:
    """Everything of one broker process. `start` and `stop` are each called once, in the loop it was made in."""

    quorum: Quorum  # from `start` on
    _identity: MetaProperties
    first_users: Sequence[UserScramCredentialRecord] = ()  # from `start` on, if settings name any
    _access_version = -1  # of the ACLs that the authorizer goes by
    _is_current = False  # the image has been replayed up to this process's registration

    def __init__(
        self,
        config: BrokerConfig,
        *,
        validator: RecordValidator | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        machine: Machine | None = None,
        features: Ranges = SUPPORTED,
        known_users: Users | None = None,
    ) -> None:
        """
        `features` are the levels that this release supports, `known_users` the users that are known from the start.

        Raises BrokerError(INVALID_CONFIG) for listeners that cannot be.
        """
        self.features = features
        self.machine = machine if machine is not None else RealMachine()
        self.static_config = self.config = config
        self.validator = validator
        self.loop = asyncio.get_running_loop()
        self.clock_ms = clock_ms
        self.cluster = ClusterImage(defaults=config, static=config)
        self.users: Users = FirstOf(known_users or Nobody(), ClusterUsers(lambda: self.cluster.access))
        self.authorizer = authorizer_of(config)
        self.lease = Lease(lambda: int(self.loop.time() * 1000), session_timeout_ms=config.broker_session_timeout_ms)
        self.logs = LogManager(
            config.data_dir,
            self.loop,
            validator=validator,
            clock_ms=clock_ms,
            files=self.machine.files,
            claim=self.machine.claim(config.data_dir),
            pool=self.machine.pool(self.loop),
            settings=lambda: self.config,
            membership=Membership(
                node_id=config.node_id,
                lease=self.lease,
                replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            ),
        )
        self.tasks = Tasks(self.loop)
        self.run = self.tasks.run
        listening = listeners_of(
            config.security,
            config.host,
            config.port,
            config.advertised_host,
            is_controller="controller" in config.process_roles,
        )
        self.node_principals = NodePrincipals(listening, super_users_of(config))
        self.peers, self.controllers = peers_of(listening, self.loop.time, self._address_of, self._controller_address)
        self.groups = GroupCoordinator(self)
        self.transactions = TransactionCoordinator(self)
        self.producer_ids = ProducerIds(self)
        self.quarantine = Quarantine(self)
        self.events = Events(self)
        self.liveness = Liveness(self._process_ended, self.peers.dialer)
        self.staging = memoryview(bytearray(STAGING_BYTES))
        self.replica_fetches = ReplicaFetches(self)
        self.replicas = ReplicaManager(self)
        self.absence_of = partial(absence_of, self)
        self.fetch_sessions = FetchSessions(slots_max=config.max_incremental_fetch_session_cache_slots)
        self.waiting_fetches: dict[SlotOwner, deque[tuple[RequestHeader, memoryview, Slot]]] = {}
        self.metadata_answers = AnswerCache()
        self.decisions = OneATurn()
        self.large_decisions = asyncio.Lock()
        self.ack_deadlines = AckDeadlines(self.loop)
        self.counters = Counters()
        self.loop_lag, self.habits = LoopLag(self), ClientHabits(self)
        self.large_answers = asyncio.Lock()
        self.memory = MemoryBudget(self.loop, config.memory_limit, request_bytes_max=config.socket_request_max_bytes)
        self.connections = Connections(self)
        self.cluster_id = ""
        self.registry_url = ""  # of the schema registry beside this broker, for whoever asks for its settings
        self.listeners = Listeners(self, listening)
        self.authority = Authority(self)
        self.ensure_topic = TopicMaker(self).ensure
        self.controller: Controller | None = None  # while this node is the active one
        self.lifecycle: BrokerLifecycle | None = None  # of a broker
        self.dispatch = dispatch_while_starting
        self.is_serving = False
        self._joining = Joining(self.loop)
        self.cannot_follow = self._joining.cannot_follow
        self._held: list[Callable[[], None]] = []

    @property
    def is_controller(self) -> bool:
        """Whether this node is the active controller now."""
        return self.authority.is_active

    @property
    def controller_id(self) -> int:
        """The active controller where that is a broker; otherwise this node, which passes on what is decided there."""
        return next(filter(self.cluster.is_alive, (self.authority.controller_id, self.static_config.node_id)), -1)

    @property
    def advertised_host(self) -> str:
        """Where other nodes find this one."""
        return self.listeners.own.advertised[0]

    @property
    def port(self) -> int:
        return self.listeners.own.advertised[1]

    @property
    def controller_endpoint(self) -> tuple[str, int]:
        """Where others find this node as a voter."""
        return self.listeners.of_controllers.advertised

    def controller_address_of(self, node_id: int) -> str | None:
        """Return where a registered broker is reached as a controller, None where nobody knows."""
        broker = self.cluster.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(self.listeners.controller_name)
        return None if endpoint is None else f"{endpoint[0]}:{endpoint[1]}"

    @property
    def told_listeners(self) -> ToldListeners:
        """Where clients of each listener reach this node, the one for other nodes first."""
        return tuple((each.name, *each.advertised, each.config.protocol.number) for each in self.listeners)

    @property
    def listener_settings(self) -> Mapping[str, str | None]:
        """Where this node listens, and what was given for that; secrets are None."""
        return {**self.static_config.security.shown(), **self.listeners.addresses()}

    @property
    def directory_id(self) -> str:
        return self._identity.directory_id

    async def start(self, *, before_serving: Callable[[], Awaitable[None]] | None = None) -> None:
        """
        Take up the data directory, join the cluster and listen.

        `before_serving` runs when the logs can be used and no client has been answered yet.

        Raises BindError, DataDirectoryError, OSError or BrokerError; nothing is left open then.
        """
        self.first_users = first_users(self.static_config.fluvial_first_users)
        self.listeners.bind()
        try:
            self.logs.open_all(lambda _: TopicConfig.from_overrides({}, self.config))
            self._identity = identity_of(self.machine.files, self.static_config)
            self.cluster_id = self._identity.cluster_id
            self.quorum = open_quorum(self, self._identity)
            self.authority.follow(self.quorum)
            self.quorum.start()
            # The others need this node's voice before it can serve anybody.
            await self.listeners.open()
            if "broker" in self.static_config.process_roles:
                await self._joining.unless_refused(self._join())
            if before_serving is not None:
                await before_serving()
        except BaseException:
            self.listeners.unbind()
            await self.stop()
            raise
        self._serve()
        self.run(tell_address(self))
        self.connections.start()
        self.loop_lag.start()
        self.habits.start()
        self.events.start()
        where = ", ".join(f"{each.name}://{each.config.host}:{each.port}" for each in self.listeners)
        _log.info("node %d of cluster %s listens on %s", self.config.node_id, self.cluster_id, where)

    async def stop(self) -> None:
        """
        Take leave of the cluster, then of the clients, and close every log in order.

        Requests under way are finished as far as that is quick.
        """
        if self.lifecycle is not None:
            await self.lifecycle.leave()
        self.liveness.stop()
        self.loop_lag.stop()
        self.habits.stop()
        await self.listeners.close()
        self.connections.stop()
        self.events.stop()
        self.groups.stop()
        self.transactions.stop()
        self.connections.close()
        await self.tasks.stop(STOP_SECONDS_MAX)
        self.connections.cut_off()
        self.replicas.stop()
        self.peers.close()
        self.controllers.close()
        if hasattr(self, "quorum"):
            await self.quorum.stop()
        await self.logs.close(broker_epoch=-1 if self.lifecycle is None else self.lifecycle.epoch)

    # What the authority uses.

    def controller_began(self, epoch: int) -> None:
        """Take office: this node is the active controller."""
        self.controller = Controller(self, self.authority, epoch, session_ms=self.config.broker_session_timeout_ms)
        self.controller.start()
        self.events.controller_began(epoch)

    def controller_ended(self) -> None:
        """Leave it."""
        if self.controller is not None:
            self.controller.stop()
            self.controller = None

    def image_changed(self) -> None:
        """Make the image true here, once it is known to be no older than this process."""
        if not self.cluster_id and self.cluster.cluster_id:
            self.cluster_id = self.cluster.cluster_id
            self._identity = replace(self._identity, cluster_id=self.cluster_id)
            write_meta_properties(self.machine.files, self.static_config.data_dir, self._identity)
        if "broker" not in self.static_config.process_roles:
            self._follow_acls()
        if self._is_current:
            self.apply_image()
        if self.lifecycle is not None:
            self.lifecycle.image_changed()
        if "controller" in self.static_config.process_roles:
            own_id = self.static_config.node_id
            self.liveness.watch(each for each in self.cluster.alive_brokers() if each.node_id != own_id)

    def hold(self, request: Callable[[], None]) -> None:
        """Keep a request until this node serves."""
        self._held.append(request)

    def apply_image(self) -> None:
        """Make logs, configs and groups what the image says they are."""
        self._apply_settings()
        self._follow_acls()
        self.metadata_answers.clear()
        self.replicas.apply()
        self.groups.follow()
        self.transactions.follow()
        self.events.image_changed()

    def _follow_acls(self) -> None:
        access = self.cluster.access
        if self.authorizer is not None and access.version != self._access_version:
            self._access_version = access.version
            self.authorizer.follow(access.acls.values())

    def _process_ended(self, node_id: int, certain: bool) -> None:
        if self.controller is not None:
            self.controller.process_ended(node_id, certain)

    def _apply_settings(self) -> None:
        config = self.cluster.effective_config(self.static_config)
        if config != self.config:
            self.config = config
            self.cluster.set_defaults(config)
            self.fetch_sessions.slots_max = config.max_incremental_fetch_session_cache_slots
            self.memory.resize(config.memory_limit, request_bytes_max=config.socket_request_max_bytes)

    async def _join(self) -> None:
        """Become a broker of the cluster; return when this node may lead."""
        # The levels that the cluster begins with are written with its name, and a registration depends on them.
        while not self.cluster.cluster_id:
            await self.quorum.changes.wait(1.0)
        self.lifecycle = BrokerLifecycle(self)
        await self.lifecycle.register()
        self._is_current = True
        self.replicas.remove_strays()
        self.apply_image()
        await self.lifecycle.come_alive()
        self.groups.start()
        self.transactions.start()

    def _serve(self) -> None:
        self.is_serving = True
        self.dispatch = dispatch
        held, self._held = self._held, []
        for request in held:
            request()

    def _address_of(self, node_id: int) -> str | None:
        broker = self.cluster.brokers.get(node_id)
        return self.quorum.others.address_of(node_id) if broker is None else f"{broker.host}:{broker.port}"

    def _controller_address(self, node_id: int) -> str | None:
        return self.quorum.others.address_of(node_id)
