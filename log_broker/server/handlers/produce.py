"""Produce: append each partition's batch and answer once all of them are as durable as their topics ask."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from log_broker.core.cluster import METADATA_TOPIC
from log_broker.core.partition import AppendResult
from log_broker.errors import BrokerError, ErrorCode
from log_broker.records.validation import check_client_version
from log_broker.server.transactional_produce import ProducedBatch, append_in_transaction, is_transactional
from log_broker.wire.framing import RequestHeader
from log_broker.wire.produce import PartitionAnswer, ProduceRequest, encode_response, parse_request
from log_broker.wire.reading import MalformedRequestError

if TYPE_CHECKING:
    from log_broker.server.dispatch import Slot
    from log_broker.server.node import Node

_ANY_CODEC_FROM = 7
ADMIN_CLIENT_ID = "__admin_client"  # under this name Kafka's own tools write to internal topics


def handle(node: "Node", header: RequestHeader, body: memoryview, slot: "Slot") -> None:
    """Answer one Produce request, possibly later."""
    version = header.api_version
    try:
        request = parse_request(body, version)
    except MalformedRequestError as error:
        slot.fail_connection(str(error))
        return
    answers = _Answers(request, header, slot)
    if request.acks not in {-1, 0, 1}:
        answers.refuse_all(AppendResult(ErrorCode.INVALID_REQUIRED_ACKS))
        return
    transactional: list[ProducedBatch] = []
    for topic_at, topic in enumerate(request.topics):
        name = topic.name.decode(errors="replace")
        for partition_at, (partition, records) in enumerate(topic.partitions):
            done = answers.done(topic_at, partition_at)
            runtime = node.logs.get(name, partition)
            if runtime is None:
                done(AppendResult(node.absence_of(name, partition)))
                continue
            if runtime.is_internal and (name == METADATA_TOPIC or header.client_id != ADMIN_CLIENT_ID):
                done(AppendResult(ErrorCode.INVALID_TOPIC_EXCEPTION, message=f"clients do not write to {name}"))
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
                transactional.append(ProducedBatch(runtime, records, request.acks, done))
                continue
            runtime.append(records, acks=request.acks, done=done)
    if request.transactional_id is not None and transactional:
        append_in_transaction(node, request.transactional_id.decode(errors="replace"), version, transactional)
    answers.all_asked()


class _Answers:
    """Gathers the partitions' results; the last one sends the response."""

    __slots__ = ("_header", "_missing", "_request", "_results", "_slot")

    def __init__(self, request: ProduceRequest, header: RequestHeader, slot: "Slot") -> None:
        self._request = request
        self._header = header
        self._slot = slot
        self._results: list[list[PartitionAnswer]] = [
            [PartitionAnswer(partition, _UNANSWERED) for partition, _ in topic.partitions] for topic in request.topics
        ]
        # One more than there are partitions: a response is complete only once every partition has been asked.
        self._missing = 1 + sum(map(len, self._results))

    def done(self, topic_at: int, partition_at: int) -> Callable[[AppendResult], None]:
        answers = self._results[topic_at]

        def done(result: AppendResult) -> None:
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
        if self._request.acks == 0:
            self._end_unanswered()
            return
        names = [topic.name for topic in self._request.topics]
        self._slot.complete(
            encode_response(
                self._header.correlation_id, self._header.api_version, list(zip(names, self._results, strict=True))
            )
        )

    def _end_unanswered(self) -> None:
        """Without responses a closed connection is the only way to tell a client that something is wrong."""
        for topic in self._results:
            for answer in topic:
                if answer.result.error is not ErrorCode.NONE:
                    self._slot.fail_connection(f"acks=0 and the append failed: {answer.result.error.name}")
                    return
        self._slot.skip()


_UNANSWERED = AppendResult(ErrorCode.UNKNOWN_SERVER_ERROR)
