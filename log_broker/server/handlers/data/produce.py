"""Produce: append each partition's batch and answer once all of them are as durable as their topics ask."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from log_broker.core.cluster.image import METADATA_TOPIC
from log_broker.core.partition.protocol import AppendResult
from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.validation import check_client_version
from log_broker.server.coordinators.transactional_produce import ProducedBatch, append_in_transaction, is_transactional
from log_broker.server.net.owners import HasOwners, keeps_out
from log_broker.server.net.peers import ADMIN_CLIENT_ID
from log_broker.server.net.rights import HasAuthorizer, rights_of
from log_broker.server.ops.client_habits import ClientHabits
from log_broker.server.ops.quarantine import CLIENT_ID as QUARANTINE_CLIENT_ID
from log_broker.server.ops.quarantine import Quarantine, QuarantineHost
from log_broker.server.partitions.ack_deadlines import AckDeadlines
from log_broker.server.partitions.current_leader import WRONG_LEADER, current_leader, endpoints_of
from log_broker.server.partitions.long_checks import Done
from log_broker.server.partitions.runtime import PartitionRuntime
from log_broker.wire.framing import RequestHeader
from log_broker.wire.produce import LEADERS_FROM, PartitionAnswer, ProduceRequest, encode_response, parse_request
from log_broker.wire.produce_single import SingleProduce, encode_single, parse_single
from log_broker.wire.reading import MalformedRequestError

if TYPE_CHECKING:
    from log_broker.server.net.slots import Slot

_ANY_CODEC_FROM = 7


class _Host(HasAuthorizer, HasOwners, QuarantineHost, Protocol):
    """What is asked of the node here."""

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def ack_deadlines(self) -> AckDeadlines: ...

    @property
    def habits(self) -> ClientHabits: ...


def handle(node: _Host, header: RequestHeader, body: memoryview, slot: "Slot") -> None:
    """Answer one Produce request, possibly later."""
    version = header.api_version
    single = parse_single(body, version)
    if single is not None and _append_single(node, header, single, slot):
        return
    try:
        request = parse_request(body, version)
    except MalformedRequestError as error:
        slot.fail_connection(str(error))
        return
    answers = _Answers(node, request, header, slot)
    rights = rights_of(node, slot)
    refusal = _refusal_of(request, rights)
    if refusal is not None:
        answers.refuse_all(refusal)
        return
    transactional: list[ProducedBatch] = []
    waits_for_others = False
    for topic_at, topic in enumerate(request.topics):
        name = topic.name.decode(errors="replace")
        is_allowed = rights is None or rights.may(Operation.WRITE, ResourceType.TOPIC, name)
        for partition_at, (partition, records) in enumerate(topic.partitions):
            done = answers.done(topic_at, partition_at)
            runtime = node.logs.get(name, partition) if is_allowed else None
            if runtime is None:
                absence = _absence_of(node, name, partition)
                done(AppendResult(absence if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            refusal = _kept_out(node, header, slot, rights, runtime)
            if refusal is not None:
                done(refusal)
                continue
            if records is None:
                done(AppendResult(ErrorCode.INVALID_RECORD, message="the partition has no records"))
                continue
            if version < _ANY_CODEC_FROM:
                try:
                    check_client_version(records, version)
                except BrokerError as error:
                    done(AppendResult(error.code, message=str(error)))
                    continue
            if request.transactional_id is not None and is_transactional(records):
                transactional.append(ProducedBatch(runtime, records, request.acks, done, node.quarantine.append))
                continue
            _append(node, runtime, records, request.acks, done)
            waits_for_others = waits_for_others or runtime.has_followers or runtime.quarantines
    if request.transactional_id is not None and transactional:
        append_in_transaction(node, request.transactional_id.decode(errors="replace"), version, transactional)
    answers.all_asked()
    answers.expire(node, may_wait=waits_for_others or bool(transactional))


def _refusal_of(request: ProduceRequest, rights: Rights | None) -> AppendResult | None:
    """Say what is wrong with a request as a whole."""
    if rights is not None and not _may_be_in_transaction(request, rights):
        return AppendResult(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.acks not in {-1, 0, 1}:
        return AppendResult(ErrorCode.INVALID_REQUIRED_ACKS)
    places = [(topic.name, partition) for topic in request.topics for partition, _ in topic.partitions]
    if len(set(places)) < len(places):
        return AppendResult(ErrorCode.INVALID_REQUEST, message="the request names a partition twice")
    return None


def _may_be_in_transaction(request: ProduceRequest, rights: Rights) -> bool:
    """As Kafka, ask for the transactional id where a batch says that it is part of a transaction."""
    if not any(
        records is not None and is_transactional(records) for topic in request.topics for _, records in topic.partitions
    ):
        return True
    transactional_id = request.transactional_id
    return transactional_id is not None and rights.may(
        Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id.decode(errors="replace")
    )


def _append(node: _Host, runtime: PartitionRuntime, records: memoryview, acks: int, done: Done) -> None:
    if runtime.quarantines:
        node.quarantine.append(runtime, records, acks=acks, done=done)
    elif runtime.is_quarantine:
        runtime.own_appends.quarantined(records, done)
    else:
        runtime.append(records, acks=acks, done=done)


def _kept_out(
    node: _Host, header: RequestHeader, slot: "Slot", rights: Rights | None, runtime: PartitionRuntime
) -> AppendResult | None:
    """Say why somebody who may write does not write to this topic."""
    topic = runtime.topic
    if runtime.is_brokers_own:
        if _is_broker(node, header, slot, rights, is_quarantine=runtime.is_quarantine):
            return None
        return AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"clients do not write to {topic}")
    reason = None if rights is None else keeps_out(node, rights, topic, runtime.config)
    return None if reason is None else AppendResult(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message=reason)


def _is_broker(node: _Host, header: RequestHeader, slot: "Slot", rights: Rights | None, *, is_quarantine: bool) -> bool:
    """
    Whether the request comes from whom a topic is written to by that clients do not write to.

    Where nobody is asked who they are, there is but the name by which it calls itself.
    """
    if rights is None:
        may = node.node_principals.include(slot.listener, slot.principal)
    else:
        may = rights.may_cluster(Operation.CLUSTER_ACTION)
    if not may:
        return False
    return header.client_id == (QUARANTINE_CLIENT_ID if is_quarantine else ADMIN_CLIENT_ID)


def _absence_of(node: _Host, topic: str, partition: int) -> ErrorCode:
    return ErrorCode.INVALID_TOPIC_EXCEPTION if topic == METADATA_TOPIC else node.absence_of(topic, partition)


def _append_single(node: _Host, header: RequestHeader, request: SingleProduce, slot: "Slot") -> bool:
    """Append the one batch of a request that may be appended as it is; say whether that was done."""
    acks, timeout_ms, topic, partition, records = request
    name = topic.decode(errors="replace")
    runtime = node.logs.get(name, partition)
    if runtime is None or runtime.is_brokers_own or not -1 <= acks <= 1:
        return False
    rights = None if node.authorizer is None else rights_of(node, slot)
    if rights is not None and (
        is_transactional(records)
        or not rights.may(Operation.WRITE, ResourceType.TOPIC, name)
        or keeps_out(node, rights, name, runtime.config)
    ):
        return False
    if node.habits.is_looking:
        node.habits.produced(header.client_id, (records,))
    answer = _Single(node, header, slot, topic, partition, acks)
    if runtime.quarantines:
        node.quarantine.append(runtime, records, acks=acks, done=answer.done)
    else:
        runtime.append(records, acks=acks, done=answer.done)
    if acks < 0 and (runtime.has_followers or runtime.quarantines) and not answer.is_answered:
        node.ack_deadlines.add(answer, timeout_ms)
    return True


class _Single:
    """The answer of a request for one partition."""

    __slots__ = ("_acks", "_header", "_node", "_partition", "_slot", "_topic")

    def __init__(  # noqa: PLR0917 - called once for every small request, where a keyword costs
        self, node: _Host, header: RequestHeader, slot: "Slot", topic: bytes, partition: int, acks: int
    ) -> None:
        self._node = node
        self._header = header
        self._slot: Slot | None = slot  # until it is answered
        self._topic = topic
        self._partition = partition
        self._acks = acks

    @property
    def is_answered(self) -> bool:
        return self._slot is None

    def done(self, result: AppendResult) -> None:
        slot = self._slot
        if slot is None:
            return  # its time was up before
        self._slot = None
        if self._acks:
            header = self._header
            if result.error in WRONG_LEADER and header.api_version >= LEADERS_FROM:
                topics = [(self._topic, [PartitionAnswer(self._partition, result)])]
                slot.complete(_with_leaders(self._node, header, topics, slot.listener))
                return
            slot.complete_framed(
                encode_single(header.correlation_id, header.api_version, self._topic, self._partition, result)
            )
        else:
            _end_unanswered(slot, (result,))

    def time_is_up(self) -> None:
        self.done(_TIMED_OUT)


class _Answers:
    """Gathers the partitions' results; the last one sends the response."""

    __slots__ = ("_acks", "_header", "_missing", "_names", "_node", "_results", "_slot", "_timeout_ms")

    def __init__(self, node: _Host, request: ProduceRequest, header: RequestHeader, slot: "Slot") -> None:
        self._node = node
        # Not the request: its records would stay for as long as this one's time is not up.
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._names = [topic.name for topic in request.topics]
        self._header = header
        self._slot = slot
        self._results: list[list[PartitionAnswer]] = [
            [PartitionAnswer(partition, _UNANSWERED) for partition, _ in topic.partitions] for topic in request.topics
        ]
        # One more than there are partitions: a response is complete only once every partition has been asked.
        self._missing = 1 + sum(map(len, self._results))
        if node.habits.is_looking:
            batches = (records for topic in request.topics for _, records in topic.partitions if records is not None)
            node.habits.produced(header.client_id, batches)

    @property
    def is_answered(self) -> bool:
        return self._missing <= 0

    def expire(self, node: _Host, *, may_wait: bool) -> None:
        """See that the client is answered in its time, if somebody else may make it wait for longer."""
        if may_wait and self._acks < 0 and not self.is_answered:
            node.ack_deadlines.add(self, self._timeout_ms)

    def time_is_up(self) -> None:
        """Answer with what there is; what comes later is nobody's."""
        for answers in self._results:
            for at, answer in enumerate(answers):
                if answer.result is _UNANSWERED:
                    answers[at] = PartitionAnswer(answer.partition, _TIMED_OUT)
        self._missing = 1
        self.all_asked()

    def done(self, topic_at: int, partition_at: int) -> Callable[[AppendResult], None]:
        answers = self._results[topic_at]

        def done(result: AppendResult) -> None:
            if self._missing <= 0:
                return  # its time was up before
            answers[partition_at] = PartitionAnswer(answers[partition_at].partition, result)
            self.all_asked()

        return done

    def refuse_all(self, result: AppendResult) -> None:
        self._results = [[PartitionAnswer(answer.partition, result) for answer in topic] for topic in self._results]
        self._missing = 1
        self.all_asked()

    def all_asked(self) -> None:
        """Count one off, and send what has been gathered when that was the last."""
        self._missing -= 1
        if self._missing:
            return
        if self._acks == 0:
            _end_unanswered(self._slot, (answer.result for topic in self._results for answer in topic))
            return
        header = self._header
        topics = list(zip(self._names, self._results, strict=True))
        if header.api_version >= LEADERS_FROM:
            self._slot.complete(_with_leaders(self._node, header, topics, self._slot.listener))
        else:
            self._slot.complete(encode_response(header.correlation_id, header.api_version, topics))


def _with_leaders(
    node: _Host, header: RequestHeader, topics: list[tuple[bytes, list[PartitionAnswer]]], listener: str
) -> bytearray:
    """Encode an answer; where this node is not the leader it says who is."""
    leaders = []
    for name, answers in topics:
        for at, answer in enumerate(answers):
            if answer.result.error in WRONG_LEADER:
                leader = current_leader(node, name.decode(errors="replace"), answer.partition)
                answers[at] = answer._replace(leader=leader)
                leaders.append(leader)
    endpoints = endpoints_of(node, leaders, listener) if leaders else ()
    return encode_response(header.correlation_id, header.api_version, topics, endpoints)


def _end_unanswered(slot: "Slot", results: Iterable[AppendResult]) -> None:
    """Without responses a closed connection is the only way to tell a client that something is wrong."""
    for result in results:
        if result.error is not ErrorCode.NONE:
            slot.fail_connection(f"acks=0 and the append failed: {result.error.name}")
            return
    slot.skip()


_UNANSWERED = AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)
_TIMED_OUT = AppendResult(ErrorCode.REQUEST_TIMED_OUT)
