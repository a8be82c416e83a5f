"""
This node's replica of the metadata quorum: the Raft machine, its files, its timer and its talk with the others.

The disk does its jobs one after the other, in a thread. If one fails, what is on the disk is no longer known: the
replica then stands still, as if its process had died, until its files can be read and written again. What it had
applied by then stays applied; the committed part of a log is the same for ever.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import randrange
from typing import Any, NamedTuple, Protocol

from log_broker.core.cluster.records import ClusterNamed, decode_all
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
from log_broker.core.raft.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
)
from log_broker.core.raft.raft import QuorumDescription, Raft
from log_broker.core.raft.replica import RaftConfig, epoch_bound
from log_broker.core.raft.voters import ReplicaKey, Voter, VoterSet
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.peers import PeerLink, Peers
from log_broker.server.process.machine import Pool
from log_broker.storage.files import FileSystem
from log_broker.storage.quorum_store import QuorumStore, check_epochs
from log_broker.wire import quorum as messages

_log = logging.getLogger(__name__)

CONFIRM_SECONDS_MAX = 1.0


def _always() -> bool:
    return True


REVIVE_SECONDS = 1.0
GOODBYE_SECONDS_MAX = 0.5


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
        self._broker_address = broker_address
        self._unix_s = unix_s
        self._loop = asyncio.get_running_loop()
        self._driver: RaftDriver | None = None
        self._store: QuorumStore | None = None
        self._surroundings: _Surroundings | None = None
        self._applied_end = 0
        self._endpoints: dict[int, tuple[str, int]] = {}  # as the others told
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._promises: dict[asyncio.Future[Any], Any] = {}
        self._leads = False
        self._is_confirming = False  # where a voter is said to listen
        self._known: tuple[int | None, int] = (None, 0)
        self._revival: asyncio.TimerHandle | None = None
        self.peers = Peers(self.address_of)

    def start(self) -> None:
        """Take up what the disk holds and begin; raises OSError or DamagedQuorumStateError."""
        store = QuorumStore(self._files, self._place.directory)
        recovered = store.recover()
        check_epochs(self._place.directory, recovered, self._epoch_max())
        surroundings = _Surroundings(self)
        raft = Raft(
            self.key,
            self._config,
            bootstrap=self._bootstrap,
            recovered=recovered,
            jitter=lambda most: randrange(most) if most > 0 else 0,  # noqa: S311 spreads timeouts
            now_ms=surroundings.now_ms(),
            epoch_max=self._epoch_max,
        )
        self._store = store
        self._surroundings = surroundings
        self._driver = RaftDriver(raft, store, _Applier(self), surroundings)
        self._driver.start()
        self.look_who_leads()

    async def stop(self) -> None:
        """Hand leadership over and let go of the files."""
        if self._revival is not None:
            self._revival.cancel()
        if self._surroundings is not None:
            if len(self.voters) > 1:
                self.handle(Resign())
            await self._surroundings.stop()
        self._drop()
        self.peers.close()
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
        if self._driver is None or self._surroundings is None:
            return False
        return self._driver.raft.surely_leads(self._surroundings.now_ms())

    def describe(self) -> QuorumDescription | None:
        """Return how far everyone is, None where this replica does not lead."""
        if self._driver is None or self._surroundings is None:
            return None
        return self._driver.raft.describe(self._surroundings.now_ms())

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
                await self._confirm(voter)
            finally:
                self._is_confirming = False
        await self.change_voters(lambda token: UpdateVoter(voter, token))

    async def _confirm(self, voter: Voter) -> None:
        """Raise BrokerError unless the voter listens where it is said to: whoever reaches this port can say so."""
        body = BeginQuorumEpochRequest(epoch=self.epoch, leader_id=self.key.node_id, voter=voter.key)
        place = self._place
        asked = messages.question(body, cluster_id=self._cluster_id(), endpoint=(place.host, place.port), wait_ms=0)
        link = PeerLink(f"{voter.host}:{voter.port}")
        try:
            response = await link.ask(asked.api, asked.version, asked.values, timeout_seconds=CONFIRM_SECONDS_MAX)
            answer = messages.read_answer(body, response).body
        finally:
            link.end()
        if answer.error is not ErrorCode.NONE:
            raise BrokerError(ErrorCode.INVALID_VOTER_KEY, f"voter {voter.key.node_id} is not at {link.address}")

    async def answer(self, api: int, request: Any, *, link: str | None = None) -> messages.Values:
        """Answer what another replica asks, on the connection `link`; raises BrokerError."""
        if not messages.is_of_cluster(api, request.cluster_id, self._cluster_id()):
            return messages.refusal(api, ErrorCode.INCONSISTENT_CLUSTER_ID)
        body = messages.read_question(api, request)
        promise: asyncio.Future[RaftResponse | None] = self._promise(None)
        self.handle(RequestReceived(promise, body, link))
        answer = await promise
        if answer is None:
            return messages.refusal(api, ErrorCode.KAFKA_STORAGE_ERROR)
        base_offset = body.log_end.offset if isinstance(body, FetchRequest) else 0
        return messages.answer(answer, base_offset, self._endpoint_of(answer.leader_id))

    def _epoch_max(self) -> int:
        return epoch_bound(self._unix_s())

    def _promise(self, otherwise: Any) -> "asyncio.Future[Any]":
        """Return the future of an answer, which is `otherwise` if this replica dies before."""
        promise: asyncio.Future[Any] = self._loop.create_future()
        self._promises[promise] = otherwise
        promise.add_done_callback(lambda each: self._promises.pop(each, None))
        return promise

    def change(self, is_so: Callable[[], bool] = _always) -> "asyncio.Future[None]":
        """
        Return what is done when something has been replayed or another leader is known, and `is_so` says yes then.

        Many may wait at once, so nobody should be woken who would only look and wait again.
        """
        change: asyncio.Future[None] = self._loop.create_future()
        self._waiting[change] = is_so
        change.add_done_callback(lambda each: self._waiting.pop(each, None))
        return change

    async def wait_for_change(self, seconds: float, is_so: Callable[[], bool] = _always) -> None:
        """Return when there are changes, see `change`, or the time is up."""
        change = self.change(is_so)
        await asyncio.wait((change,), timeout=seconds)
        change.cancel()

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
        assert self._surroundings is not None, "who asks has begun"
        self._surroundings.run(self._ask(to, request_id, body))

    def _drop(self) -> None:
        self._driver = None
        if self._surroundings is not None:
            self._surroundings.abandon()
            self._surroundings = None
        if self._store is not None:
            self._store.close()
            self._store = None
        self._break_promises()

    def _break_promises(self) -> None:
        for promise, otherwise in list(self._promises.items()):
            _settle(promise, otherwise)

    def _revive(self) -> None:
        """Begin again from what is really on the disk: a page that could not be written may look as if it was."""
        try:
            for name in self._files.names(self._place.directory):
                self._files.drop_cached(self._place.directory / name)
            self.start()
        except Exception as error:
            self.failed(error)

    async def _ask(self, to: int, request_id: int, body: RaftRequest) -> None:
        place = self._place
        asked = messages.question(
            body,
            cluster_id=self._cluster_id() or self._cluster_id_in_log(),
            endpoint=(place.host, place.port),
            wait_ms=self._config.fetch_wait_ms_max,
        )
        # A Fetch may wait, and no vote is to wait behind it.
        purpose = "quorum-fetch" if isinstance(body, FetchRequest | FetchSnapshotRequest) else "quorum"
        surroundings = self._surroundings
        try:
            response = await self.peers.link(to, purpose).ask(
                asked.api,
                asked.version,
                asked.values,
                timeout_seconds=self._config.request_timeout_ms / 1000,
                # A leader takes a second fetch on a connection as proof that its answer to the first has arrived.
                alone=isinstance(body, FetchRequest),
            )
            answer = messages.read_answer(body, response)
        except BrokerError as error:
            _log.debug("node %d did not answer %s: %s", to, asked.api.name, error)
            return
        self._endpoints.update(answer.endpoints)
        if surroundings is self._surroundings:  # else it was another life that asked
            self.handle(ResponseReceived(request_id, answer.body))
            if answer.body.epoch > self._epoch_max():
                _log.warning(
                    "node %d is in epoch %d of the metadata quorum, which is not believed before %d seconds have "
                    "passed: is this machine's clock right?",
                    to,
                    answer.body.epoch,
                    answer.body.epoch - self._epoch_max(),
                )

    def _cluster_id_in_log(self) -> str | None:
        """Return the id that the log gives the cluster, as long as this replica does not know that to be committed."""
        if self._driver is None:
            return None
        raft = self._driver.raft
        for entry in raft.replica.log.between(raft.replica.high_watermark, raft.replica.log.end_offset):
            if entry.kind is EntryKind.DATA:
                named = (record for record in decode_all(entry.data) if isinstance(record, ClusterNamed))
                if (first := next(named, None)) is not None:
                    return first.cluster_id
        return None

    def address_of(self, node_id: int) -> str | None:
        """Return where a node of the quorum listens, or another that the cluster knows."""
        endpoint = self._endpoint_of(node_id)
        return self._broker_address(node_id) if endpoint is None else f"{endpoint[0]}:{endpoint[1]}"

    def _endpoint_of(self, node_id: int) -> tuple[str, int] | None:
        # An observer may know the voters by what it was told alone: as long as they stay, the log does not name them.
        voter = self.voters.get(node_id) or self._bootstrap.get(node_id)
        return (voter.host, voter.port) if voter is not None and voter.host else self._endpoints.get(node_id)

    def apply(self, base_offset: int, entries: Sequence[Entry]) -> None:
        """Replay committed entries, but none twice: after a failure of the disk they come again."""
        for offset, entry in enumerate(entries, base_offset):
            if offset >= self._applied_end and entry.kind is EntryKind.DATA:
                self._above.replay(entry.data)
        self._applied_end = max(self._applied_end, base_offset + len(entries))
        self._above.replayed()
        self.tell_change()

    def load(self, data: bytes, end_offset: int) -> None:
        """Take in a snapshot, unless all that it holds has been replayed."""
        if end_offset > self._applied_end:
            self._above.load(data)
            self._applied_end = end_offset
            self._above.replayed()
            self.tell_change()

    def snapshot(self) -> bytes:
        return self._above.snapshot()

    def leadership(self, change: LeadershipBegan | LeadershipEnded) -> None:
        self._leads = isinstance(change, LeadershipBegan)
        if isinstance(change, LeadershipBegan):
            self._above.began(change.epoch)
        else:
            self._above.ended()
        self.tell_change()

    def tell_change(self) -> None:
        for change, is_so in list(self._waiting.items()):
            if not change.done() and is_so():
                change.set_result(None)

    def look_who_leads(self) -> None:
        known = (self.leader_id, self.epoch)
        if known != self._known:
            self._known = known
            _log.info(
                "the metadata quorum's leader of epoch %d: %s", known[1], "unknown" if known[0] is None else known[0]
            )
            self.tell_change()


class _Applier:
    """The state machine above, as the driver knows it."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self.apply = quorum.apply
        self.snapshot = quorum.snapshot
        self.load = quorum.load
        self.leadership = quorum.leadership

    def proposed(self, result: Proposed) -> None:
        _settle(result.token, result)

    def voters_changed(self, result: VotersChanged) -> None:
        _settle(result.token, result)


class _Surroundings:
    """What asyncio offers to one life of a replica."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()  # the first is being done
        self._asking: set[asyncio.Task[None]] = set()
        self._alive = True
        self._idle = asyncio.Event()
        self._idle.set()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def wake_at(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self._alive:
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._quorum.tick)

    def store(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        if not self._alive:
            return
        self._jobs.append((job, done))
        if len(self._jobs) == 1:
            self._idle.clear()
            self._work()

    def send_request(self, to: int, request_id: int, body: RaftRequest) -> None:
        if self._alive:
            self._quorum.ask(to, request_id, body)

    def send_response(self, token: Any, body: RaftResponse) -> None:
        _settle(token, body)

    def run(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def stop(self) -> None:
        """Let the disk finish, and what was said last leave; then do nothing more."""
        await self._idle.wait()
        if self._asking:
            await asyncio.wait(self._asking, timeout=GOODBYE_SECONDS_MAX)
        self.abandon()

    def abandon(self) -> None:
        """Do nothing more, and wait for nobody."""
        self._alive = False
        self.wake_at(None)
        self._jobs.clear()
        self._idle.set()
        for task in self._asking:
            task.cancel()

    def _work(self) -> None:
        self._quorum.submit(self._jobs[0][0], self._worked)

    def _worked(self, error: BaseException | None) -> None:
        if not self._alive:
            return
        if error is not None:
            self._quorum.failed(error)
            return
        _, done = self._jobs.popleft()
        if self._jobs:
            self._work()
        else:
            self._idle.set()
        self._quorum.stored(done)


def _settle(promise: Any, result: Any) -> None:
    """Keep a promise, if somebody still waits."""
    if not promise.done():
        promise.set_result(result)
