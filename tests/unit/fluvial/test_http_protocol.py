"""The bounds on requests, and web sockets, which have none of these once they are through."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.sync.client import connect

from fluvial import http_protocol
from fluvial.http_protocol import BoundedProtocol
from fluvial.http_server import listen, server_of

HEAD_SECONDS = 0.3


async def echo(asked: WebSocket) -> None:
    await asked.accept()
    async for text in asked.iter_text():
        await asked.send_text(text)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS_MAX", HEAD_SECONDS)
    app = Starlette(routes=[WebSocketRoute("/", echo)])
    server = server_of(uvicorn.Config(app, http=BoundedProtocol, lifespan="off", log_config=None), None)
    listening = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def test_a_web_socket_outlives_the_wait_for_a_request(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/") as opened:
        time.sleep(3 * HEAD_SECONDS)
        opened.send("still here")
        assert opened.recv(30) == "still here"


def test_a_request_for_a_web_socket_that_does_not_end_is_not_waited_for(port: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
