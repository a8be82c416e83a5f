"""What the broker does with a request before it acts on it: cut, read the header, read the body."""

from log_broker.errors import BrokerError
from log_broker.records.validation import check_batch, check_client_version
from log_broker.wire import fetch, list_offsets, produce
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import read_request
from log_broker.wire.framing import FrameCutter, read_header
from log_broker.wire.reading import MalformedRequestError

BYTES_MAX = 1 << 20


def decode(request: bytes) -> str:
    """Return what became of it. The broker's own errors are answers; any other exception is a finding."""
    (frame,) = FrameCutter(BYTES_MAX).take(memoryview(len(request).to_bytes(4, "big") + request))
    try:
        header, body = read_header(frame)
        api = APIS.get(header.api_key)
        if api is None or not api.supports(header.api_version):
            return "not served"
        match header.api_key:
            case ApiKey.PRODUCE:
                _check_batches(produce.parse_request(body, header.api_version), header.api_version)
            case ApiKey.FETCH:
                fetch.parse_request(body, header.api_version)
            case ApiKey.LIST_OFFSETS:
                list_offsets.parse_request(body, header.api_version)
            case _:
                read_request(header.api_key, header.api_version, body)
    except MalformedRequestError:
        return "malformed"
    return "read"


def _check_batches(request: produce.ProduceRequest, version: int) -> None:
    for topic in request.topics:
        for _, records in topic.partitions:
            if records is None:
                continue
            try:
                check_client_version(records, version)
                check_batch(records, bytes_max=BYTES_MAX)
            except BrokerError:
                continue
