"""TLS connections leave nothing behind, whenever they are ended and whatever the client does then."""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import time
import warnings

import pytest
from certificates import Authority

from log_broker.errors import BrokerError
from log_broker.server.embedded import run_embedded
from log_broker.server.net.dialing import SecureDialer
from log_broker.server.net.half_open import HalfOpen
from log_broker.server.net.peers import PeerLink
from log_broker.server.net.tls_server import TlsServer
from log_broker.wire.apis import ApiKey

TURNS = 40  # of the event loop, after which a handshake is through in any case


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


class FixedContext:
    def __init__(self, path, *, is_server=True):
        if is_server:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(path)
        else:
            self._context = ssl.create_default_context(cafile=path)

    def current(self):
        return self._context


class LetIn(asyncio.Protocol):
    """A connection that is through; `transport` is None as long as it is not, and when it has ended."""

    def __init__(self, made):
        self.transport = None
        made.append(self)

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        self.transport = None


async def turns_of_the_loop(number):
    for _ in range(number):
        await asyncio.sleep(0)


class Server:
    """A server, and who is let in by it."""

    def __init__(self, certificate):
        self.made = []
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = listener.getsockname()
        half_open = HalfOpen(asyncio.get_running_loop())
        self._server = TlsServer(listener, FixedContext(certificate), lambda: LetIn(self.made), half_open)

    async def close(self):
        """As a node does: no more come in, then who is in is cut off; and wait until the loop has told them."""
        await self._server.close()
        while any(each.transport is not None for each in self.made):
            for each in self.made:
                if each.transport is not None:
                    each.transport.abort()
            await asyncio.sleep(0)


async def close_after(turns, certificate, trusted):
    server = Server(certificate)
    client = ssl.create_default_context(cafile=trusted)
    connecting = asyncio.ensure_future(asyncio.open_connection(*server.address, ssl=client))
    await turns_of_the_loop(turns)
    async with asyncio.timeout(5):
        await server.close()
        with contextlib.suppress(OSError):  # refused, or cut off
            reader, writer = await connecting
            assert await reader.read() == b""
            writer.transport.abort()
    await turns_of_the_loop(5)


async def cancel_after(turns, certificate, trusted):
    server = Server(certificate)
    dialer = SecureDialer(FixedContext(trusted, is_server=False), None, asyncio.get_running_loop().time)
    connected = []
    connecting = asyncio.ensure_future(dialer.connect(lambda: LetIn(connected), *server.address))
    await turns_of_the_loop(turns)
    connecting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        (await connecting).transport.abort()
    async with asyncio.timeout(5):
        await server.close()
    await turns_of_the_loop(5)


@contextlib.contextmanager
def nothing_is_left():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in caught] == []


@pytest.mark.parametrize("turns", range(TURNS))
def test_a_server_may_be_closed_at_any_step_of_a_handshake(authority, turns):
    with nothing_is_left():
        asyncio.run(close_after(turns, authority.issue("broker"), authority.path))


@pytest.mark.parametrize("turns", range(TURNS))
def test_who_connects_may_be_cancelled_at_any_step_of_a_handshake(authority, turns):
    with nothing_is_left():
        asyncio.run(cancel_after(turns, authority.issue("broker"), authority.path))


def test_a_node_stops_without_waiting_for_clients_to_end_tls(authority):
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("broker"),
        "ssl.truststore.location": authority.path,
    }
    with nothing_is_left():
        with run_embedded(data_dir=None, port=0, validator=None, topics=(), settings=settings) as broker:
            client = ssl.create_default_context(cafile=authority.path)
            address = ("127.0.0.1", broker.port)
            silent = client.wrap_socket(socket.create_connection(address), server_hostname="127.0.0.1")
            deadline = time.monotonic() + 30
            while not len(broker.node.connections):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        silent.settimeout(10)
        assert silent.recv(1) == b""
        silent.close()


async def end_link_of(address, dialed, trusted):
    dialer = SecureDialer(FixedContext(trusted, is_server=False), None, asyncio.get_running_loop().time)
    link = PeerLink("{}:{}".format(*address), dialer=dialer)
    asking = asyncio.ensure_future(link.ask(ApiKey.API_VERSIONS, 0, {}))
    await asyncio.to_thread(dialed.wait, 10)
    await asyncio.sleep(0.05)  # the request is sent
    link.end()
    with contextlib.suppress(BrokerError):
        await asking
    await turns_of_the_loop(5)


def test_a_link_ends_without_waiting_for_the_other_node_to_end_tls(authority):
    listener = socket.create_server(("127.0.0.1", 0))
    context = FixedContext(authority.issue("broker")).current()
    dialed, over = threading.Event(), threading.Event()

    def serve():
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True) as encrypted:
            dialed.set()
            over.wait(30)
            encrypted.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with nothing_is_left():
        asyncio.run(end_link_of(listener.getsockname(), dialed, authority.path))
    over.set()
    thread.join()
    listener.close()
