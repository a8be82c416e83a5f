"""Who answers on a port: a broker of a cluster, a stranger, or nobody."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import log_broker
from fluvial.local.probe import Cluster, Nobody, Stranger, ask, is_up, offline_log_dirs, registry_answers
from fluvial.local.state import NodeSpec

Reply = Callable[[bytes], bytes | None]


@contextmanager
def listening(reply: Reply | None) -> Iterator[int]:
    """A port where each connection's first bytes are answered; None accepts connections and never reads them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    answer = reply(connection.recv(4096)) if reply is not None else None
                    if answer is not None:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        if reply is not None:
            thread.start()
        yield int(server.getsockname()[1])
        if reply is not None:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def metadata(request: bytes, brokers: dict[int, int], cluster_id: str | None) -> bytes:
    size, key, version, correlation = struct.unpack_from(">ihhi", request)
    assert (size, key, version) == (len(request) - 4, 3, 2)
    listed = b"".join(
        struct.pack(">i", node) + string("127.0.0.1") + struct.pack(">i", port) + string(None)
        for node, port in brokers.items()
    )
    body = struct.pack(">ii", correlation, len(brokers)) + listed + string(cluster_id) + struct.pack(">ii", 0, 0)
    return struct.pack(">i", len(body)) + body


def test_a_broker_names_its_cluster_and_the_brokers() -> None:
    with listening(lambda request: metadata(request, {0: 1, 7: 2}, "c")) as port:
        assert ask("127.0.0.1", port) == Cluster(cluster_id="c", brokers={0: ("127.0.0.1", 1), 7: ("127.0.0.1", 2)})


@pytest.mark.parametrize(
    "reply",
    [
        lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda request: b"",
        lambda request: b"\0\0",
        lambda request: struct.pack(">i", 8) + b"\0" * 8,
        lambda request: struct.pack(">iii", 100, 0x666C7576, 1),
        lambda request: struct.pack(">i", -5),
    ],
    ids=["http", "closes", "half a length", "another correlation id", "cut short", "negative length"],
)
def test_what_is_no_broker_is_a_stranger(reply: Reply) -> None:
    with listening(reply) as port:
        assert ask("127.0.0.1", port, timeout_seconds=5) == Stranger()
        assert not registry_answers("127.0.0.1", port, timeout_seconds=5)


def test_a_stopped_process_accepts_and_says_nothing() -> None:
    with listening(None) as port:
        assert ask("127.0.0.1", port, timeout_seconds=0.2) == Stranger()


def test_a_closed_port_is_nobody() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    assert ask("127.0.0.1", port) == Nobody()
    assert not registry_answers("127.0.0.1", port)


@pytest.mark.parametrize(
    ("node_id", "own_port", "cluster_id", "up"),
    [(0, True, "c", True), (1, True, "c", False), (0, False, "c", False), (0, True, "other", False)],
    ids=["itself", "another node", "another address", "another cluster"],
)
def test_a_node_is_up_only_if_it_answers_as_itself(node_id: int, own_port: bool, cluster_id: str, up: bool) -> None:
    place: list[int] = []
    with listening(lambda request: metadata(request, {0: place[0] if own_port else 1}, cluster_id)) as port:
        place.append(port)
        node = NodeSpec(id=node_id, host="127.0.0.1", port=port, registry_port=None, data_dir="x")
        assert is_up(node, "c") is up


def test_a_registry_answers_with_status_200() -> None:
    with listening(lambda request: b"HTTP/1.1 200 OK\r\n\r\n[]") as port:
        assert registry_answers("127.0.0.1", port)
    with listening(lambda request: b"HTTP/1.1 500 Oops\r\n\r\n") as port:
        assert not registry_answers("127.0.0.1", port)


def test_a_directory_that_failed_its_broker_is_told() -> None:
    with log_broker.embedded(topics={"t": 2}) as broker:
        assert offline_log_dirs(broker.host, broker.port) == ()
        runtime = broker.node.logs.get("t", 1)
        assert runtime is not None
        runtime.replica.core.state.offline_reason = "the failed write could not be taken back"
        assert offline_log_dirs(broker.host, broker.port) == (str(broker.data_dir.absolute()),)


@pytest.mark.parametrize("answer", [None, b"", b"\0\0\0\4\0\0\0\0", b"\xff\xff\xff\xff", b"HTTP/1.1 400 Bad Request"])
def test_who_does_not_answer_has_no_offline_directory(answer: bytes | None) -> None:
    with listening(lambda _: answer) as port:
        assert offline_log_dirs("127.0.0.1", port, timeout_seconds=0.2) == ()
