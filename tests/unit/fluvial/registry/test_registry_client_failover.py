"""A client that knows several nodes of one registry, and which of them it asks when one is gone."""

import socket
import threading

import pytest

from fluvial.registry.client import RegistryClient
from fluvial.registry.errors import RegistryError

NOBODY = "http://127.0.0.1:1"
SCHEMA = '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "long"}]}'


class HangsUp:
    """Hears requests and dies of each: whether it did what was asked nobody can say."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection:
                words = connection.recv(1 << 16)
                if not words:
                    return
                self.heard.append(words.partition(b" ")[0])  # before the client learns that it is hung up on

    def stop(self) -> None:
        socket.create_connection(self._server.getsockname()).close()
        self._thread.join()
        self._server.close()


@pytest.fixture
def hangs_up():
    server = HangsUp()
    yield server
    server.stop()


def test_the_next_node_is_asked_for_one_that_is_gone(registry_server) -> None:
    with RegistryClient(f"{NOBODY}, {registry_server.url}/") as client:
        schema_id = client.register("a-value", SCHEMA)
        assert client.latest("a-value").id == schema_id
        assert client.delete_subject("a-value") == [1]
        assert client.subjects() == []


def test_whoever_answered_is_asked_again(registry_server, hangs_up) -> None:
    with RegistryClient(f"{hangs_up.url},{registry_server.url}") as client:
        schema_id = client.register("a-value", SCHEMA)
        assert client.register("a-value", SCHEMA) == schema_id
        assert client.subjects() == ["a-value"]
    assert hangs_up.heard == [b"POST"]


def test_a_deletion_that_may_be_done_is_not_said_again(registry_server, hangs_up) -> None:
    with RegistryClient(registry_server.url) as client:
        client.register("a-value", SCHEMA)
    with (
        RegistryClient(f"{hangs_up.url},{registry_server.url}") as client,
        pytest.raises(RegistryError, match="does not answer"),
    ):
        client.delete_subject("a-value")
    assert hangs_up.heard == [b"DELETE"]
    with RegistryClient(registry_server.url) as client:
        assert client.subjects() == ["a-value"]


def test_a_refusal_is_an_answer(registry_server, hangs_up) -> None:
    with RegistryClient(f"{registry_server.url},{hangs_up.url}") as client, pytest.raises(RegistryError) as refused:
        client.schema_by_id(9)
    assert refused.value.status == 404
    assert hangs_up.heard == []


def test_all_are_named_when_none_answers() -> None:
    with RegistryClient(f"{NOBODY},http://127.0.0.1:2") as client, pytest.raises(RegistryError) as failed:
        client.subjects()
    assert "http://127.0.0.1:1,http://127.0.0.1:2 does not answer" in str(failed.value)
    assert failed.value.code is None
