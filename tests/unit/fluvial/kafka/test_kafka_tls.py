"""TLS with brokers behind a proxy that ends it, and what is said to those who get it wrong."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import log_broker
from fluvial.cluster.picture import picture_of
from fluvial.cluster.sign_in import SignInError
from fluvial.cluster.wire import ClusterLink
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import UnreachableError, admin_of, await_broker
from tests.peers.secured_kafka import Authority, Pair


class TlsProxy:
    """Ends TLS in front of a broker, as one is set up where a broker has none of its own."""

    def __init__(self, context: ssl.SSLContext, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._context, self._target = context, (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._spawn(self._accept)

    def close(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
        for each in list(self._open):
            each.close()

    def _spawn(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listening.accept()
                self._open.append(plain)
                self._spawn(self._serve, plain)

    def _serve(self, plain: socket.socket) -> None:
        try:
            secured = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        broker = socket.create_connection(self._target)
        self._open += [secured, broker]
        with suppress(OSError):
            _carry(secured, broker)
        for each in (secured, broker):
            each.close()


def _carry(secured: ssl.SSLSocket, broker: socket.socket) -> None:
    """Carry what comes to the other side until one of them ends; one thread, for TLS is not to be shared by two."""
    while True:
        ready = [secured] if secured.pending() else select.select([secured, broker], [], [])[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (broker if source is secured else secured).sendall(data)


@dataclass(frozen=True)
class Secured:
    """A broker in plain text, behind TLS, and behind TLS that asks for a certificate."""

    plain: str
    tls: str
    mutual: str
    authority: Authority
    stranger: Authority
    client: Pair

    def ssl(self, **more: str) -> dict[str, str]:
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.certificate), **more}

    def shown(self, pair: Pair) -> dict[str, str]:
        return self.ssl(**{"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("certificates")
    authority, stranger = Authority(folder, "authority"), Authority(folder, "stranger")
    broker = authority.issue("broker")
    with ExitStack() as stack:
        target = stack.enter_context(log_broker.embedded()).bootstrap_servers

        def proxy(verify: ssl.VerifyMode) -> str:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
            context.load_cert_chain(broker.certificate, broker.key)
            context.verify_mode = verify
            running = TlsProxy(context, target)
            stack.callback(running.close)
            return running.address

        yield Secured(
            plain=target,
            tls=proxy(ssl.CERT_NONE),
            mutual=proxy(ssl.CERT_REQUIRED),
            authority=authority,
            stranger=stranger,
            client=authority.issue("client"),
        )


Way = Callable[[Secured], tuple[str, dict[str, str]]]


def inline(secured: Secured) -> tuple[str, dict[str, str]]:
    """The same certificates as text."""
    return secured.mutual, {
        "security.protocol": "SSL",
        "ssl.ca.pem": secured.authority.certificate.read_text(),
        "ssl.certificate.pem": secured.client.certificate.read_text(),
        "ssl.key.pem": secured.client.key.read_text(),
    }


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(lambda it: (it.tls, it.ssl()), id="tls"),
        pytest.param(lambda it: (it.mutual, it.shown(it.client)), id="certificates on both sides"),
        pytest.param(inline, id="certificates as text"),
        pytest.param(
            lambda it: (it.tls, {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}),
            id="anybody is trusted",
        ),
    ],
)
def test_our_own_client_is_let_in(secured: Secured, way: Way) -> None:
    servers, properties = way(secured)
    cluster = KafkaCluster.with_properties(servers, **properties)
    with ClusterLink(cluster) as link:
        assert len(picture_of(link).brokers) == 1


@pytest.mark.parametrize(
    ("way", "says"),
    [
        pytest.param(
            lambda it: (it.tls, it.ssl(**{"ssl.ca.location": str(it.stranger.certificate)})),
            "not trusted, or is for another host: name the PEM file of its CA in ssl.ca.location",
            id="another authority",
        ),
        pytest.param(
            lambda it: (it.tls.replace("127.0.0.1", "localhost"), it.ssl()),
            "not trusted, or is for another host",
            id="another host",
        ),
        pytest.param(
            lambda it: (it.tls, {}), "set security.protocol to SSL or SASL_SSL", id="plain text to a port of TLS"
        ),
        pytest.param(lambda it: (it.plain, it.ssl()), "speaks no TLS on this port", id="TLS to a port of plain text"),
        pytest.param(
            lambda it: (it.mutual, it.ssl()),
            "check ssl.certificate.location and ssl.key.location",
            id="no certificate",
        ),
        pytest.param(
            lambda it: (it.mutual, it.shown(it.stranger.issue("somebody"))),
            "check ssl.certificate.location and ssl.key.location",
            id="a certificate of another authority",
        ),
    ],
)
def test_who_is_not_let_in_is_told_why(secured: Secured, way: Way, says: str) -> None:
    servers, properties = way(secured)
    cluster = KafkaCluster.with_properties(servers, **properties)
    with pytest.raises(UnreachableError) as failed:
        await_broker(admin_of(cluster), cluster, down_seconds=1)
    assert says in str(failed.value)
    with pytest.raises(FluvialError), ClusterLink(cluster, timeout_seconds=5) as link:
        picture_of(link)


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    properties = {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
    cluster = KafkaCluster.with_properties("127.0.0.1:1", **properties)
    with pytest.raises(FluvialError, match=r"ssl\.ca\.location"):
        admin_of(cluster)
    with pytest.raises(SignInError, match=r"ssl\. properties"), ClusterLink(cluster) as link:
        picture_of(link)
