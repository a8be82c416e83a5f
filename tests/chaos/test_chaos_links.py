"""The links between processes: who dials is known, and each direction can be cut, slowed, dropped and tapped."""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from chaos_links import CLIENTS, Answer, Break, Links, Taps

DIALLER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as there:
    while line := sys.stdin.readline():
        there.sendall(line.encode())
        print(there.recv(100).decode(), end="", flush=True)
"""

ADDRESS = "127.0.1.7"


class Echo:
    """A server that returns what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    data = connection.recv(65536)
                except OSError:
                    return
                if not data:
                    return
                self.got += data
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


class World:
    """One proxied server "b", and processes that may be nodes."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.echo = Echo()
        self.links = Links(lambda: self.nodes, {ADDRESS: "d"})
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.links.proxy(("127.0.0.1", self.port), "b", self.echo.address)
        self.processes: list[subprocess.Popen[str]] = []

    def node(self, name: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", DIALLER, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.nodes[process.pid] = name
        self.processes.append(process)
        return process

    def client(self, client_id: str) -> socket.socket:
        """A connection of a client that has sent its first request, which the server has returned."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(request(client_id))
        return connection

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        self.links.close()
        self.echo.close()


def request(client_id: str, body: bytes = b"") -> bytes:
    """A request's frame with its length."""
    header = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id.encode()
    return struct.pack(">i", len(header + body)) + header + body


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def silent(connection: socket.socket, seconds: float = 0.3) -> bool:
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(20)
    return False


def test_a_node_is_known_by_the_address_that_it_dials_from(world: World) -> None:
    with socket.create_connection(("127.0.0.1", world.port), source_address=(ADDRESS, 0)) as node:
        node.sendall(b"hello")
        assert node.recv(5) == b"hello"
        world.links.cut(["d"], ["b"])
        node.sendall(b"again")
        assert silent(node)
        world.links.heal()
        assert node.recv(5) == b"again"


def test_a_node_is_known_by_its_process_and_its_link_alone_is_cut(world: World) -> None:
    a, c = world.node("a"), world.node("c")
    for process in (a, c):
        say(process, "hello")
        assert hear(process) == "hello"
    world.links.cut(["a"], ["b"])
    say(a, "cut")
    say(c, "through")
    assert hear(c) == "through"
    assert b"cut" not in world.echo.got
    world.links.heal()
    assert hear(a) == "cut", "what waited goes on when the link heals"


def test_one_direction_is_cut(world: World) -> None:
    with world.client("any") as client:
        client.recv(100)
        world.links.cut(["b"], [CLIENTS], both_ways=False)
        client.sendall(b"there")
        assert silent(client)
        assert world.echo.got.endswith(b"there")
        world.links.heal()
        assert client.recv(100) == b"there"


def test_a_new_connection_waits_for_a_cut_link(world: World) -> None:
    world.links.cut(["in"], ["b"])
    with world.client("in/first") as inside, world.client("out/first") as outside:
        assert outside.recv(100) == request("out/first")
        assert silent(inside)
        world.links.heal()
        assert inside.recv(100) == request("in/first")


def test_bytes_are_dropped_and_then_the_connection(world: World) -> None:
    with world.client("any") as client:
        client.recv(100)
        world.links.rule(CLIENTS, "b", discard=True)
        client.sendall(b"gone")
        assert silent(client)
        world.links.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    assert b"gone" not in world.echo.got


def test_a_slow_link_passes_everything_in_order(world: World) -> None:
    with world.client("any") as client:
        client.recv(100)
        world.links.rule(CLIENTS, "b", delay_seconds=0.02, bytes_per_second=200_000)
        data = bytes(range(256)) * 200
        client.sendall(data)
        found = b""
        while len(found) < len(data):
            found += client.recv(65536)
    assert found == data


def test_connections_are_broken(world: World) -> None:
    with world.client("in/one") as one, world.client("out/one") as other:
        one.recv(100)
        other.recv(100)
        world.links.break_connections("in", "b")
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        other.sendall(b"still")
        assert other.recv(100) == b"still"


def test_a_tap_sees_whole_frames_and_answers_or_breaks(world: World) -> None:
    seen = []

    async def look(frame: bytes) -> Answer | Break | None:
        seen.append(frame)
        if frame.endswith(b"answer me"):
            return Answer(b"at once")
        return Break() if frame.endswith(b"break me") else None

    world.links.tap("in", Taps(request=look))
    with world.client("in/one") as client:
        client.recv(100)
        frame = request("in/one", b"answer me")
        client.sendall(frame[:10])
        client.sendall(frame[10:])
        assert client.recv(100) == struct.pack(">i", 7) + b"at once"
        client.sendall(request("in/one", b"break me"))
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert seen[1:] == [request("in/one", text)[4:] for text in (b"answer me", b"break me")]
    assert b"answer me" not in world.echo.got
    assert b"break me" not in world.echo.got
