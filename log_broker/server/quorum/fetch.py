"""
Fetch of the metadata log by a replica of it: the one Fetch that the metadata quorum answers, not the logs.

A thousand observers ask the same question again and again, and all are told the same: what was read and written for one
is kept for the next.
"""

import asyncio
from functools import lru_cache

from log_broker.core.raft.messages import FetchRequest, RaftResponse
from log_broker.errors import ErrorCode
from log_broker.server.net.slots import Slot
from log_broker.server.quorum.ports import HasQuorum
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_request, write_response
from log_broker.wire.framing import RequestHeader
from log_broker.wire.quorum import FETCH_VERSION, answer, is_of_cluster, read_question, refusal
from log_broker.wire.reading import MalformedRequestError

REQUEST_BYTES_MAX = 1024  # some 150 are what a replica sends
_CORRELATION_BYTES = 4


def fetch_metadata(node: HasQuorum, header: RequestHeader, body: memoryview, slot: Slot) -> None:
    """Answer a replica at once or when there is something to tell; raises BrokerError."""
    if len(body) > REQUEST_BYTES_MAX:
        slot.fail_connection(f"a fetch of the metadata log of {len(body)} bytes")
        return
    try:
        cluster_id, asked = _read(bytes(body))
    except MalformedRequestError as error:
        slot.fail_connection(str(error))
        return
    correlation_id = header.correlation_id.to_bytes(_CORRELATION_BYTES, "big", signed=True)
    if not is_of_cluster(ApiKey.FETCH, cluster_id, node.cluster_id or None):
        slot.complete(correlation_id, _refusal(ErrorCode.INCONSISTENT_CLUSTER_ID))
        return

    def give(answered: "asyncio.Future[RaftResponse | None]") -> None:
        response = answered.result()
        if response is None:
            slot.complete(correlation_id, _refusal(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            leader_at = node.quorum.others.endpoint_of(response.leader_id)
            slot.complete(correlation_id, _written(response, asked.log_end.offset, leader_at))

    node.quorum.asked(asked, slot.peer).add_done_callback(give)


@lru_cache(maxsize=4096)
def _read(body: bytes) -> tuple[str | None, FetchRequest]:
    """Return the cluster that a request names, and what it asks."""
    request = read_request(ApiKey.FETCH, FETCH_VERSION, memoryview(body))
    asked = read_question(ApiKey.FETCH, request)
    assert isinstance(asked, FetchRequest), "it is read as what it is"
    return request.cluster_id, asked


@lru_cache(maxsize=16)
def _written(response: RaftResponse, base_offset: int, leader_at: tuple[str, int] | None) -> bytes:
    """Return an answer from behind its correlation id on."""
    values = answer(response, base_offset, leader_at)
    return bytes(write_response(ApiKey.FETCH, FETCH_VERSION, 0, values)[_CORRELATION_BYTES:])


def _refusal(error: ErrorCode) -> bytes:
    values = refusal(ApiKey.FETCH, error)
    return bytes(write_response(ApiKey.FETCH, FETCH_VERSION, 0, values)[_CORRELATION_BYTES:])
