"""
This node's replica of the metadata quorum: the Raft machine, its files, its timer and its requests to the others.

The disk does its jobs one after the other, in a thread. If one fails, what is on the disk is no longer known: the
replica then stands still, as if its process had died, until its files can be read and written again. What it had
applied by then stays applied; the committed part of a log is the same for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from random import randrange
from typing import Any, NamedTuple, Protocol

from log_broker.core.raft.description import QuorumDescription, describe_quorum
from log_broker.core.raft.driver import RaftDriver
from log_broker.core.raft.effects import (
    AddVoter,
    Event,
    LeadershipBegan,
    LeadershipEnded,
    Propose,
    Proposed,
    RemoveVoter,
    RequestReceived,
    Resign,
    ResponseReceived,
    UpdateVoter,
    VotersChanged,
)
from log_broker.core.raft.log import Entry, EntryKind
from log_broker.core.raft.messages import RaftRequest, RaftResponse
from log_broker.core.raft.raft import Raft
from log_broker.core.raft.replica import RaftConfig, epoch_bound
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.dialing import Dialer
from log_broker.server.process.machine import Pool
from log_broker.server.quorum.changes import Changes
from log_broker.server.quorum.other_replicas import OtherReplicas, cluster_id_in_log
from log_broker.server.quorum.replica_life import ReplicaLife, settle
from log_broker.storage.files import FileSystem
from log_broker.storage.quorum_store import QuorumStore, check_epochs
from log_broker.wire import quorum as messages

_log = logging.getLogger(__name__)

REVIVE_SECONDS = 1.0


class Above(Protocol):
    """Whose log this is."""

    def replay(self, value: bytes) -> None:
        """Take in a committed value; raises UnknownMetadataRecordError."""
        ...

    def replayed(self) -> None:
        """Look at what a batch of values, or a snapshot, has come to."""
        ...

    def snapshot(self) -> bytes: ...

    def load(self, snapshot: bytes) -> None:
        """Be what a snapshot holds; raises UnknownMetadataRecordError."""
        ...

    def began(self, epoch: int) -> None:
        """Decide from now on: this node is the active controller."""
        ...

    def ended(self) -> None:
        """Decide no more."""
        ...


class QuorumReplica(NamedTuple):
    """Which replica this is, where it keeps its files and where it listens."""

    key: ReplicaKey
    directory: Path
    host: str
    port: int

    @property
    def endpoint(self) -> tuple[str, int]:
        return self.host, self.port


class Quorum:
    """One replica, voter or observer, for as long as its node runs."""

    def __init__(
        self,
        place: QuorumReplica,
        config: RaftConfig,
        bootstrap: VoterSet,
        above: Above,
        *,
        files: FileSystem,
        pool: Pool,
        cluster_id: Callable[[], str | None],
        broker_address: Callable[[int], str | None],
        unix_s: Callable[[], int],
        dialer: Dialer,
    ) -> None:
        """`broker_address` tells where a registered broker listens, `unix_s` the wall clock, which bounds epochs."""
        self.key = place.key
        self._place = place
        self._config = config
        self._bootstrap = bootstrap
        self._above = above
        self._files = files
        self._pool = pool
        self._cluster_id = cluster_id
        self._unix_s = unix_s
        self._loop = asyncio.get_running_loop()
        self._driver: RaftDriver | None = None
        self._store: QuorumStore | None = None
        self._life: ReplicaLife | None = None
        self._applied_end = 0
        self._promises: dict[asyncio.Future[Any], Any] = {}
        self._leads = False
        self._is_confirming = False  # where a voter is said to listen
        self._known: tuple[int | None, int] = (None, 0)
        self._revival: asyncio.TimerHandle | None = None
        self.changes = Changes()
        self.others = OtherReplicas(
            place.endpoint,
            config,
            self._own_cluster_id,
            self._find_voter,
            broker_address=broker_address,
            dialer=dialer,
        )

    def start(self) -> None:
        """Take up what the disk holds and begin; raises OSError or DamagedQuorumStateError."""
        store = QuorumStore(self._files, self._place.directory)
        recovered = store.recover()
        check_epochs(self._place.directory, recovered, self._epoch_max())
        life = ReplicaLife(self)
        raft = Raft(
            self.key,
            self._config,
            bootstrap=self._bootstrap,
            recovered=recovered,
            jitter=lambda most: randrange(most) if most > 0 else 0,  # noqa: S311 spreads timeouts
            now_ms=life.now_ms(),
            epoch_max=self._epoch_max,
        )
        self._store = store
        self._life = life
        self._driver = RaftDriver(raft, store, _Applier(self), life)
        self._driver.start()
        self.look_who_leads()

    async def stop(self) -> None:
        """Hand leadership over and let go of the files."""
        if self._revival is not None:
            self._revival.cancel()
        if self._life is not None:
            if len(self.voters) > 1:
                self.handle(Resign())
            await self._life.stop()
        self._drop()
        self.others.close()
        self._pool.close()

    @property
    def leader_id(self) -> int | None:
        """The leader as far as this replica knows."""
        return None if self._driver is None else self._driver.raft.leader_id

    @property
    def epoch(self) -> int:
        return 0 if self._driver is None else self._driver.raft.replica.epoch

    @property
    def voters(self) -> VoterSet:
        """The voters as far as this replica's log tells."""
        return self._bootstrap if self._driver is None else self._driver.raft.replica.voters.current

    @property
    def is_voter(self) -> bool:
        return self.key in self.voters

    @property
    def high_watermark(self) -> int:
        """How far the log is committed, as far as this replica knows."""
        return 0 if self._driver is None else self._driver.raft.replica.high_watermark

    @property
    def surely_leads(self) -> bool:
        """Whether this replica leads and no other can have been elected in its place without its knowing."""
        if self._driver is None or self._life is None:
            return False
        return self._driver.raft.surely_leads(self._life.now_ms())

    def describe(self) -> QuorumDescription | None:
        """Return how far everyone is, None where this replica does not lead."""
        if self._driver is None or self._life is None:
            return None
        return describe_quorum(self._driver.raft, self._life.now_ms())

    def propose(self, epoch: int, value: bytes) -> "asyncio.Future[Proposed]":
        """Have a value committed that was decided under `epoch`; when the answer comes it has been replayed here."""
        answer: asyncio.Future[Proposed] = self._promise(Proposed(None, ErrorCode.NOT_CONTROLLER, in_doubt=True))
        self.handle(Propose(epoch, (value,), answer))
        return answer

    async def change_voters(self, change: Callable[[Any], AddVoter | RemoveVoter | UpdateVoter]) -> None:
        """Add, remove or move a voter, which `change` makes of a token; raises BrokerError."""
        answer: asyncio.Future[VotersChanged] = self._promise(VotersChanged(None, ErrorCode.NOT_CONTROLLER))
        self.handle(change(answer))
        result = await answer
        if result.error is not ErrorCode.NONE:
            raise BrokerError(result.error, result.message)

    async def move_voter(self, voter: Voter) -> None:
        """Write down that a voter listens elsewhere, once it has answered there; raises BrokerError."""
        if self._leads and self.voters.get(voter.key.node_id) != voter:
            if self._is_confirming:
                raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, "another voter's address is being checked")
            self._is_confirming = True
            try:
                await self.others.confirm(voter, self.epoch, self.key.node_id)
            finally:
                self._is_confirming = False
        await self.change_voters(lambda token: UpdateVoter(voter, token))

    async def answer(self, api: int, request: Any) -> messages.Values:
        """Answer what another replica asks, but for a Fetch; raises BrokerError."""
        if not messages.is_of_cluster(api, request.cluster_id, self._cluster_id()):
            return messages.refusal(api, ErrorCode.INCONSISTENT_CLUSTER_ID)
        answer = await self.asked(messages.read_question(api, request))
        if answer is None:
            return messages.refusal(api, ErrorCode.KAFKA_STORAGE_ERROR)
        return messages.answer(answer, 0, self.others.endpoint_of(answer.leader_id))

    def asked(self, body: RaftRequest, link: str | None = None) -> "asyncio.Future[RaftResponse | None]":
        """Hand in what another replica asks, on the connection `link`; the answer is None if this one dies before."""
        promise: asyncio.Future[RaftResponse | None] = self._promise(None)
        self.handle(RequestReceived(promise, body, link))
        return promise

    def _epoch_max(self) -> int:
        return epoch_bound(self._unix_s())

    def _promise(self, otherwise: Any) -> "asyncio.Future[Any]":
        """Return the future of an answer, which is `otherwise` if this replica dies before."""
        promise: asyncio.Future[Any] = self._loop.create_future()
        self._promises[promise] = otherwise
        promise.add_done_callback(lambda each: self._promises.pop(each, None))
        return promise

    def handle(self, event: Event) -> None:
        """Hand an event to the replica."""
        self._run(lambda driver: driver.handle(event))

    def stored(self, done: Callable[[], None]) -> None:
        """Go on after the disk has done something."""
        self._run(lambda _: done())

    def tick(self) -> None:
        """Let the replica do what is due."""
        self._run(RaftDriver.tick)

    def _run(self, step: Callable[[RaftDriver], None]) -> None:
        if self._driver is not None:
            try:
                step(self._driver)
            except Exception as error:
                self.failed(error)
        if self._driver is None:
            self._break_promises()
        self.look_who_leads()

    def failed(self, error: BaseException) -> None:
        """Stand still after the disk failed, or a rule was found broken, and begin again from the disk in a moment."""
        _log.error("the metadata log in %s failed", self._place.directory, exc_info=error)
        self._drop()
        if self._leads:
            self._leads = False
            self._above.ended()
        self.look_who_leads()
        self._revival = self._loop.call_later(REVIVE_SECONDS, self._revive)

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Have a thread do `work`."""
        self._pool.submit(work, done)

    def ask(self, to: int, request_id: int, body: RaftRequest) -> None:
        """Send a request of this replica to another."""
        assert self._life is not None, "who asks has begun"
        self._life.run(self._ask(to, request_id, body))

    def _drop(self) -> None:
        self._driver = None
        if self._life is not None:
            self._life.abandon()
            self._life = None
        if self._store is not None:
            self._store.close()
            self._store = None
        self._break_promises()

    def _break_promises(self) -> None:
        for promise, otherwise in list(self._promises.items()):
            settle(promise, otherwise)

    def _revive(self) -> None:
        """Begin again from what is really on the disk: a page that could not be written may look as if it was."""
        try:
            for name in self._files.names(self._place.directory):
                self._files.drop_cached(self._place.directory / name)
            self.start()
        except Exception as error:
            self.failed(error)

    async def _ask(self, to: int, request_id: int, body: RaftRequest) -> None:
        life = self._life
        answer = await self.others.ask(to, body)
        if answer is None or life is not self._life:  # another life asked
            return
        self.handle(ResponseReceived(request_id, answer))
        if answer.epoch > self._epoch_max():
            _log.warning(
                "node %d is in epoch %d of the metadata quorum, which is not believed before %d seconds have "
                "passed: is this machine's clock right?",
                to,
                answer.epoch,
                answer.epoch - self._epoch_max(),
            )

    def _find_voter(self, node_id: int) -> Voter | None:
        # An observer may know the voters by what it was told alone: as long as they stay, the log does not name them.
        return self.voters.get(node_id) or self._bootstrap.get(node_id)

    def _own_cluster_id(self) -> str | None:
        """Return the cluster's id; before this replica knows that to be committed, the one in its log."""
        if (known := self._cluster_id()) is not None or self._driver is None:
            return known
        return cluster_id_in_log(self._driver.raft)

    def apply(self, base_offset: int, entries: Sequence[Entry]) -> None:
        """Replay committed entries, but none twice: after a failure of the disk they come again."""
        for offset, entry in enumerate(entries, base_offset):
            if offset >= self._applied_end and entry.kind is EntryKind.DATA:
                self._above.replay(entry.data)
        self._applied_end = max(self._applied_end, base_offset + len(entries))
        self._above.replayed()
        self.changes.notify()

    def load(self, data: bytes, end_offset: int) -> None:
        """Take in a snapshot, unless all that it holds has been replayed."""
        if end_offset > self._applied_end:
            self._above.load(data)
            self._applied_end = end_offset
            self._above.replayed()
            self.changes.notify()

    def snapshot(self) -> bytes:
        return self._above.snapshot()

    def leadership(self, change: LeadershipBegan | LeadershipEnded) -> None:
        self._leads = isinstance(change, LeadershipBegan)
        if isinstance(change, LeadershipBegan):
            self._above.began(change.epoch)
        else:
            self._above.ended()
        self.changes.notify()

    def look_who_leads(self) -> None:
        known = (self.leader_id, self.epoch)
        if known != self._known:
            self._known = known
            _log.info(
                "the metadata quorum's leader of epoch %d: %s", known[1], "unknown" if known[0] is None else known[0]
            )
            self.changes.notify()


class _Applier:
    """The state machine above, as the driver knows it."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.apply = quorum.apply
        self.snapshot = quorum.snapshot
        self.load = quorum.load
        self.leadership = quorum.leadership

    def proposed(self, result: Proposed) -> None:
        settle(result.token, result)

    def voters_changed(self, result: VotersChanged) -> None:
        settle(result.token, result)
