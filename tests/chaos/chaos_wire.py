"""One request at a time to one node, for what stock clients do not ask, such as who leads the quorum."""

import struct
from typing import Any

from chaos_security import MANNER, exactly

from log_broker.wire import control

Address = tuple[str, int]
OBSERVER = "observer/chaos"  # of a zone of its own, which nobody cuts
SECONDS_MAX = 10.0


def ask(address: Address, api_key: int, version: int, values: dict[str, Any]) -> Any:
    """Send one request by kio's field names and return its answer; raises OSError where the node cannot be reached."""
    request = bytes(control.write_request(api_key, version, 1, OBSERVER, values))
    with MANNER.connect(address, SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = exactly(connection, struct.unpack(">i", exactly(connection, 4))[0])
    return control.read_response(api_key, version, memoryview(answer)[4:])
