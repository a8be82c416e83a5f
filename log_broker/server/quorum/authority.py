"""
What this node knows and asks of the controller: the one voter of the metadata quorum that decides about the cluster.

A decision looks at the image as it will be when all earlier ones are committed, and is proposed at once; it is
answered when it is committed itself. So decisions are made one at a time but share their way to the disks. All nodes
replay what is committed, in the same order, and nothing else changes their images.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from log_broker.core.cluster import controller
from log_broker.core.cluster.features import misfit
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import FeatureLevelSet, MetadataRecord, decode_all, encode_all
from log_broker.core.cluster.snapshot import decode_image, encode_image
from log_broker.core.raft.effects import Proposed
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dispatch import DispatchHost, answer_here, call_here
from log_broker.server.net.peers import PeerLink
from log_broker.server.net.ports import HasPeers
from log_broker.server.process.ports import Cluster, HasFeatures
from log_broker.wire.apis import ApiKey
from log_broker.wire.framing import write_header
from log_broker.wire.principals import write_principal

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext
    from log_broker.server.quorum.quorum import Quorum

Decide = Callable[[ClusterImage], Sequence[MetadataRecord]]
T = TypeVar("T")

_RETRY_SECONDS = 0.05
_LINK = "control"


class AuthorityHost(Cluster, DispatchHost, HasFeatures, HasPeers, Protocol):
    """What the authority asks of its node, and tells it."""

    def image_changed(self) -> None:
        """Records were replayed into the image."""
        ...

    def controller_began(self, epoch: int) -> None:
        """This node is the active controller now."""
        ...

    def controller_ended(self) -> None:
        """It is not any more."""
        ...

    def cannot_follow(self, reason: BrokerError) -> None:
        """The cluster is at a level that this node does not support."""
        ...


class Authority:
    """This node's side of the controller, and the controller's decisions while this node is the active one."""

    def __init__(self, node: AuthorityHost) -> None:
        # How long a request waits for a controller that answers it, of which there may be none for a while.
        self.answer_seconds_max = 15.0
        self._node = node
        self._quorum: Quorum
        self._epoch: int | None = None  # that this node decides under
        self._head: ClusterImage | None = None  # with all that is proposed; None when that is what is committed
        self._proposed: dict[asyncio.Future[Proposed], None] = {}  # in their order

    def follow(self, quorum: "Quorum") -> None:
        """Take the replica over whose log the decisions are in."""
        self._quorum = quorum

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller now."""
        return self._epoch is not None

    @property
    def controller_id(self) -> int:
        """The active controller as far as is known here, -1 while there is none."""
        leader_id = self._quorum.leader_id
        return -1 if leader_id is None else leader_id

    @property
    def decided(self) -> ClusterImage:
        """The image as it will be when all that is decided here is committed; not to be changed."""
        return self._node.cluster if self._head is None else self._head

    async def submit(self, decide: Decide) -> None:
        """
        Have `decide` look at the image, and return when its records are committed and replayed here.

        `decide` gets a draft that it may replay its own records on. Raises BrokerError: NOT_CONTROLLER where this node
        is not the active one, REQUEST_TIMED_OUT if that ended before it was known whether the records are committed;
        also whatever `decide` raises.
        """
        if self._epoch is None:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the controller is node {self.controller_id}")
        base = self.decided
        records = decide(base.draft())
        if not records:
            # What it has seen may be proposed only; an answer must not speak of what never comes to be.
            if self._proposed:
                await asyncio.wait((next(reversed(self._proposed)),))  # they are committed in their order
            return
        head = base.draft()
        for record in records:
            head.replay(record)
        answer = self._quorum.propose(self._epoch, encode_all(records))
        if not answer.done():
            self._head = head
            self._proposed[answer] = None
            answer.add_done_callback(self._settled)
        # The proposal is not taken back if whoever waits for it goes away.
        result = await asyncio.shield(answer)
        if result.in_doubt:
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, "the controller changed: this may come to be or not")
        if result.error is not ErrorCode.NONE:
            raise BrokerError(result.error, "the active controller could not take this in")

    async def create_topic(self, command: controller.CreateTopic) -> None:
        """Make a topic, and return when it is known here; raises BrokerError."""
        if self.is_active:
            await self.submit(lambda image: [controller.create_topic(image, command, self._node.config)])
            return
        assignments = sorted((command.assignments or {}).items())
        wanted = {
            "name": command.name,
            "num_partitions": command.partitions,
            "replication_factor": command.replication_factor,
            "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments],
            "configs": [{"name": name, "value": text} for name, text in (command.overrides or {}).items()],
        }
        values = {"topics": (wanted,), "timeout": int(self.answer_seconds_max * 1000), "validate_only": False}
        answer = await self.ask_controller(ApiKey.CREATE_TOPICS, 7, values)
        (topic,) = answer.topics
        if topic.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
            raise BrokerError(ErrorCode(topic.error_code), topic.error_message or "")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.answer_seconds_max):
                while command.name not in self._node.cluster.topics:
                    await self._quorum.changes.wait(_RETRY_SECONDS, lambda: command.name in self._node.cluster.topics)

    async def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions, `count` in all; raises BrokerError."""
        if self.is_active:

            def decide(image: ClusterImage) -> list[MetadataRecord]:
                known = image.topics.get(topic)
                grows = known is not None and len(known.partitions) < count
                return [controller.add_partitions(image, known, count, None)] if known is not None and grows else []

            await self.submit(decide)
            return
        wanted = {"name": topic, "count": count, "assignments": None}
        values = {"topics": (wanted,), "timeout_ms": int(self.answer_seconds_max * 1000), "validate_only": False}
        answer = await self.ask_controller(ApiKey.CREATE_PARTITIONS, 3, values)
        (outcome,) = answer.results
        if outcome.error_code:
            raise BrokerError(ErrorCode(outcome.error_code), outcome.error_message or "")

    async def forward(self, context: "RequestContext") -> bytes:
        """Pass a request on and return the answer from behind the correlation id; raises BrokerError."""
        request = write_header(context.header) + bytes(context.body)
        peer, principal = context.slot.peer, context.slot.principal

        async def here() -> bytes:
            return await answer_here(self._node, request, peer, principal)

        async def there(link: PeerLink) -> bytes:
            values = {
                "request_data": request,
                "request_principal": write_principal(principal),
                "client_host_address": peer.encode(),
            }
            answer = await link.ask(ApiKey.ENVELOPE, 0, values, timeout_seconds=self.answer_seconds_max)
            if answer.error_code:
                raise BrokerError(
                    ErrorCode(answer.error_code), "the controller did not take a request that was passed on"
                )
            content: bytes = answer.response_data
            return content

        return (await self._at_controller(here, there, self.answer_seconds_max))[4:]

    async def ask_controller(
        self,
        api: ApiKey,
        version: int,
        values: dict[str, Any],
        *,
        timeout_seconds: float | None = None,
        purpose: str = _LINK,
    ) -> Any:
        """
        Ask the active controller, this node or another, and return its answer.

        Waits while there is none and asks the next one where another has taken over, so a request may reach two of
        them. Answers come in the order asked, so what must not wait behind others has a `purpose` of its own. Raises
        BrokerError when the time is up.
        """

        seconds = self.answer_seconds_max if timeout_seconds is None else timeout_seconds

        async def here() -> Any:
            return _checked(await call_here(self._node, api, version, values))

        async def there(link: PeerLink) -> Any:
            return _checked(await link.ask(api, version, values, timeout_seconds=seconds))

        return await self._at_controller(here, there, seconds, purpose)

    async def _at_controller(
        self,
        here: Callable[[], Awaitable[T]],
        there: Callable[[PeerLink], Awaitable[T]],
        seconds: float,
        purpose: str = _LINK,
    ) -> T:
        loop = self._node.loop
        deadline = loop.time() + seconds
        reason = "there is no active controller"
        while True:
            controller_id = self.controller_id
            try:
                if self.is_active:
                    # Without a majority it answers only once it has found out that it leads no more.
                    async with asyncio.timeout_at(deadline):
                        return await here()
                if controller_id not in {-1, self._node.static_config.node_id}:
                    link = self._node.controllers.link(controller_id, purpose)
                    return await self._while_it_leads(controller_id, there(link), deadline)
            except BrokerError as error:
                if error.code not in {ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE}:
                    raise
                reason = str(error)
            except TimeoutError:
                reason = "this node, which is the controller, cannot commit"
            if loop.time() >= deadline:
                raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, f"no controller has answered: {reason}")
            await self._quorum.changes.wait(_RETRY_SECONDS)

    async def _while_it_leads(self, controller_id: int, asking: Awaitable[T], deadline: float) -> T:
        """Wait for an answer as long as it comes from the active controller."""
        task = asyncio.ensure_future(asking)
        try:
            while not task.done():
                change = self._quorum.changes.next(lambda: self.controller_id != controller_id)
                either: set[asyncio.Future[Any]] = {task, change}
                left = max(deadline - self._node.loop.time(), 0)
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
                if not task.done() and (self.controller_id != controller_id or self._node.loop.time() >= deadline):
                    raise BrokerError(ErrorCode.NOT_CONTROLLER, f"node {controller_id} did not answer")
            return task.result()
        finally:
            task.cancel()

    def _settled(self, answer: "asyncio.Future[Proposed]") -> None:
        self._proposed.pop(answer, None)
        if not self._proposed:
            self._head = None

    # What the quorum tells.

    def replay(self, value: bytes) -> None:
        records = decode_all(value)
        self._check_levels({each.feature: each.level for each in records if isinstance(each, FeatureLevelSet)})
        for record in records:
            self._node.cluster.replay(record)

    def replayed(self) -> None:
        self._node.image_changed()

    def snapshot(self) -> bytes:
        return encode_image(self._node.cluster)

    def load(self, snapshot: bytes) -> None:
        cluster = self._node.cluster
        image = decode_image(snapshot, cluster.defaults)
        self._check_levels(image.levels)
        cluster.become(image)

    def _check_levels(self, levels: Mapping[str, int]) -> None:
        """Stand still before a level that this node does not support: what follows may mean what it does not know."""
        node = self._node
        reason = misfit(f"node {node.static_config.node_id}", node.features, levels)
        if reason is not None:
            error = BrokerError(ErrorCode.UNSUPPORTED_VERSION, reason)
            node.cannot_follow(error)
            raise error

    def began(self, epoch: int) -> None:
        self._epoch = epoch
        self._head = None
        self._node.controller_began(epoch)

    def ended(self) -> None:
        self._head = None
        self._proposed.clear()
        if self._epoch is not None:
            self._epoch = None
            self._node.controller_ended()


def _checked(answer: Any) -> Any:
    """Return an answer; raises BrokerError for that of a node that is not the controller."""
    if getattr(answer, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
        raise BrokerError(ErrorCode.NOT_CONTROLLER, "another node is the controller")
    return answer
