"""
Whatever a stranger sends to a listener with sign-in: nothing of it may reach a handler, and users get in all the while.

    python tests/fuzz/fuzz_sign_in.py --connections 100000 --seed 2

speaks to an embedded broker, in plain text and over TLS: requests of all apis, envelopes and names of clients that are
forged, sign-ins cut short, out of order, replayed whole or in part from another connection, by a mechanism that a
listener does not have or changed in a byte, certificates of an authority that only has the right name, TLS of old
versions or cut short, and noise.
"""

import argparse
import contextlib
import random
import socket
import ssl
import struct
import sys
import tempfile
import warnings
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "unit/log_broker/server/net"), str(Path(__file__).parents[2])]

from certificates import Authority

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.principal import Principal
from log_broker.core.security.scram import ScramClient, credential_of
from log_broker.server.embedded import EmbeddedBroker, run_embedded
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import write_request
from log_broker.wire.principals import write_principal

BEFORE_SIGN_IN = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
MECHANISM = ScramMechanism.SHA_256
PASSWORD = b"only alice knows"
STRONG = ScramMechanism.SHA_512  # the one mechanism of a listener
STEPS_MAX = 6
CLIENT_IDS = ("broker", "__admin_client", "node", "x", "")
NONCE = "alice's"
ATTACKS = ("tls", "plain", "replayed", "weaker", "tls", "plain", "foreign", "plain", "tls", "before tls")
MADE_BY_STRANGERS = {
    "topics": ({"name": "strangers", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()},),
    "timeout": 1000,
    "validate_only": False,
}


class Known:
    """One user."""

    _credential = credential_of(PASSWORD, b"salt", 4096, MECHANISM)

    def scram(self, name, mechanism):
        return self._credential if (name, mechanism) == ("alice", MECHANISM) else None


def old_tls():
    """What a client has that would rather speak TLS 1.1, with the weakest ciphers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def hello(context):
    """The first message of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def foreign_certificates(folder, trusted):
    """What a client has whose certificates are of an authority with the name of the right one, or who has none."""
    authority = folder / "foreign" / folder.name
    authority.mkdir(parents=True)
    signer = Authority(authority)
    contexts = []
    for name in ("node", "alice", None):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = ssl.create_default_context(cafile=str(trusted))
            context.minimum_version = context.maximum_version = version
            if name is not None:
                context.load_cert_chain(signer.issue(name))
            contexts.append(context)
    return contexts


class Stranger:
    """Draws what is sent, from a seed; keeps what a user said elsewhere to say it again."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.heard = []

    def frames(self):
        """What one connection sends, with its lengths."""
        for _ in range(self.dice.randint(1, STEPS_MAX)):
            frame = self.dice.choice(
                (
                    *(self._versions, self._handshake, self._handshake, self._token, self._token),
                    *(self.any_sound, self._request, self._noise),
                )
            )()
            if self.dice.random() < 0.2 and frame:
                frame = bytearray(frame)
                frame[self.dice.randrange(len(frame))] ^= 1 << self.dice.randrange(8)
            length = len(frame) if self.dice.random() < 0.95 else self.dice.randint(-5, 1 << 20)
            yield struct.pack(">i", length) + bytes(frame)

    def _versions(self):
        return write_request(ApiKey.API_VERSIONS, 0, 1, "x", {})

    def _handshake(self):
        mechanism = self.dice.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "x" * 3000))
        return write_request(ApiKey.SASL_HANDSHAKE, self.dice.randint(0, 1), 2, "x", {"mechanism": mechanism})

    def _token(self):
        nonce = str(self.dice.random())
        tokens = [
            b"\0alice\0" + self.dice.choice((b"", b"wrong", PASSWORD[:-1])),
            b"node\0alice\0" + PASSWORD,
            ScramClient(MECHANISM, self.dice.choice(("alice", "bob")), b"wrong", nonce=nonce).first(),
            b"c=biws,r=" + nonce.encode() + b",p=" + b"A" * 43 + b"=",
            self.dice.randbytes(self.dice.randint(0, 200)),
            *self.heard,
        ]
        token = self.dice.choice(tokens)
        if self.dice.random() < 0.3:
            return token
        return write_request(ApiKey.SASL_AUTHENTICATE, self.dice.randint(0, 2), 3, "x", {"auth_bytes": token})

    def any_sound(self):
        """A request that any handler would answer."""
        key = {"key": "g", "key_type": 0}
        some = {"topics": None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        api, version, values = self.dice.choice(
            (
                (ApiKey.METADATA, 12, some),
                (ApiKey.LIST_GROUPS, 0, {}),
                (ApiKey.FIND_COORDINATOR, 3, key),
                (ApiKey.ENVELOPE, 0, self._envelope()),
                (ApiKey.CREATE_TOPICS, 7, MADE_BY_STRANGERS),
            )
        )
        return write_request(api, version, 5, self.dice.choice(CLIENT_IDS), values)

    def _envelope(self):
        """What a node would pass on for a super user."""
        inner = write_request(ApiKey.CREATE_TOPICS, 7, 6, self.dice.choice(CLIENT_IDS), MADE_BY_STRANGERS)
        principal = self.dice.choice((b"", write_principal(Principal("node")), write_principal(Principal("alice"))))
        return {"request_data": bytes(inner), "request_principal": principal, "client_host_address": b"\x7f\0\0\1"}

    def _request(self):
        api = APIS[self.dice.choice(list(APIS))]
        version = self.dice.randint(api.version_min, api.version_max)
        client = self.dice.choice((b"broker", b"__admin_client", b""))
        body = self.dice.randbytes(self.dice.randint(0, 60))
        return struct.pack(">hhih", api.key, version, 4, len(client)) + client + b"\0" + body

    def _noise(self):
        return self.dice.randbytes(self.dice.randint(0, 300))


class UnderFire:
    """A broker with a listener in plain text and one with TLS, both with sign-in."""

    def __init__(self, folder):
        authority = Authority(folder)
        self._settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,STRONG://127.0.0.1:0,MUTUAL://127.0.0.1:0",
            "listener.security.protocol.map": "STRONG:SASL_PLAINTEXT,MUTUAL:SSL",
            "listener.name.strong.sasl.enabled.mechanisms": STRONG,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+).*$/$1/",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.jaas.config": 'x required username="node" password="between";',
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": authority.issue("broker"),
            "ssl.truststore.location": authority.path,
            "connection.failed.authentication.delay.ms": 0,
        }
        self._context = ssl.create_default_context(cafile=str(authority.path))
        self._old = old_tls()
        self._hellos = [hello(self._context), hello(self._old)]
        self._foreign_contexts = foreign_certificates(folder, authority.path)
        self._downgraded = self._answered = self._signed_in = 0

    def fire(self, connections, seed):
        """Send; return what should not have happened."""
        settings = {"data_dir": None, "port": 0, "validator": None, "topics": {}, "known_users": Known()}
        with run_embedded(settings=self._settings, **settings) as broker:
            stranger = Stranger(seed)
            attacks = {
                "plain": lambda: self._connection(broker, stranger, "SASL_PLAINTEXT"),
                "tls": lambda: self._connection(broker, stranger, "SASL_SSL"),
                "replayed": lambda: self._replayed(broker, stranger),
                "weaker": lambda: self._weaker(broker, stranger),
                "foreign": lambda: self._foreign(broker, stranger),
                "before tls": lambda: self._before_tls(broker, stranger.dice),
            }
            for number in range(connections):
                if number % 50 == 0:
                    stranger.heard = self._said_by_alice(broker)
                attacks[ATTACKS[number % len(ATTACKS)]]()
            return list(self._findings(broker))

    def _before_tls(self, broker, dice):
        """Begin a handshake and go, go on in plain text, or ask for an old version."""
        client = socket.create_connection(("127.0.0.1", self._port(broker, "SASL_SSL")), timeout=20)
        try:
            if dice.random() < 0.1:
                client = self._old.wrap_socket(client)
                self._downgraded += 1
                return
            first = bytearray(dice.choice(self._hellos))
            for _ in range(dice.randint(0, 3)):
                first[dice.randrange(len(first))] = dice.randrange(256)
            plain = write_request(ApiKey.API_VERSIONS, 0, 1, "x", {})
            client.sendall(first[: dice.randint(0, len(first))] + dice.choice((b"", plain, dice.randbytes(300))))
            client.settimeout(0.002)
            client.recv(65536)
        except OSError:
            pass
        finally:
            client.close()

    def _weaker(self, broker, stranger):
        """Sign in as alice by what a listener does not have, or in a way that began otherwise."""
        client = self._connected(broker, stranger.dice.choice(("STRONG", "SASL_PLAINTEXT", "SASL_SSL")))
        named, used = stranger.dice.choice((("PLAIN", "PLAIN"), (STRONG, "PLAIN"), (STRONG, MECHANISM)))
        if named == "PLAIN" and client.getpeername()[1] != self._port(broker, "STRONG"):
            named = STRONG
        scram = ScramClient(MECHANISM, "alice", PASSWORD, nonce=str(stranger.dice.random()))
        token = b"\0alice\0" + PASSWORD if used == "PLAIN" else scram.first()
        version = stranger.dice.randint(0, 1)
        frames = [write_request(ApiKey.SASL_HANDSHAKE, version, 1, "x", {"mechanism": named})]
        frames.append(
            token if version == 0 else write_request(ApiKey.SASL_AUTHENTICATE, 1, 2, "x", {"auth_bytes": token})
        )
        frames.append(write_request(ApiKey.CREATE_TOPICS, 7, 3, "__admin_client", MADE_BY_STRANGERS))
        self._send(client, (struct.pack(">i", len(frame)) + frame for frame in frames))

    def _replayed(self, broker, stranger):
        """Say what alice has said, or the end of it after a beginning of one's own with her nonce."""
        client = self._connected(broker, stranger.dice.choice(("SASL_PLAINTEXT", "SASL_SSL")))
        first, final = stranger.heard
        if stranger.dice.random() < 0.3:
            first = ScramClient(MECHANISM, "alice", b"guessed", nonce=NONCE).first()
        version = stranger.dice.randint(0, 1)
        frames = [write_request(ApiKey.SASL_HANDSHAKE, version, 1, "x", {"mechanism": MECHANISM})]
        for token in (first, final):
            framed = write_request(ApiKey.SASL_AUTHENTICATE, 1, 2, "x", {"auth_bytes": token})
            frames.append(token if version == 0 else framed)
        frames.append(write_request(ApiKey.CREATE_TOPICS, 7, 3, "x", MADE_BY_STRANGERS))
        with client, contextlib.suppress(OSError):
            for frame in frames:
                client.sendall(struct.pack(">i", len(frame)) + frame)
                if not client.recv(65536):
                    return

    def _foreign(self, broker, stranger):
        """Come with a certificate that nobody here has signed, or with none, where one lets in."""
        context = stranger.dice.choice(self._foreign_contexts)
        frames = [write_request(ApiKey.API_VERSIONS, 0, 1, "x", {}), stranger.any_sound()]
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port(broker, "MUTUAL")), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
        ):
            for frame in frames:
                client.sendall(struct.pack(">i", len(frame)) + frame)
            if client.recv(65536):
                self._answered += 1

    def _connection(self, broker, stranger, listener):
        self._send(self._connected(broker, listener), stranger.frames())

    def _send(self, client, frames):
        try:
            for frame in frames:
                client.sendall(frame)
            client.settimeout(0.002)
            while client.recv(65536):
                pass
        except (OSError, ValueError):
            pass
        finally:
            client.close()

    def _port(self, broker, listener):
        return next(each.port for each in broker.node.listeners if each.name == listener)

    def _connected(self, broker, listener):
        client = socket.create_connection(("127.0.0.1", self._port(broker, listener)), timeout=20)
        is_secured = listener == "SASL_SSL"
        return self._context.wrap_socket(client, server_hostname="127.0.0.1") if is_secured else client

    def _said_by_alice(self, broker: EmbeddedBroker):
        """Sign in as a user does, and return the messages that were sent."""
        with self._connected(broker, "SASL_PLAINTEXT") as client:
            scram = ScramClient(MECHANISM, "alice", PASSWORD, nonce=NONCE)
            self._signed_in += 1

            def ask(api, version, values):
                request = write_request(api, version, 1, "alice", values)
                client.sendall(struct.pack(">i", len(request)) + request)
                return client.recv(65536)

            ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": MECHANISM})
            messages = [scram.first()]
            client.sendall(struct.pack(">i", len(messages[0])) + messages[0])
            messages.append(scram.final(client.recv(65536)[4:]))
            client.sendall(struct.pack(">i", len(messages[1])) + messages[1])
            try:
                scram.verify(client.recv(65536)[4:])
            except SignInError as error:
                raise AssertionError("alice is not let in any more") from error
            return messages

    def _findings(self, broker):
        for api, durations in broker.node.counters.requests.items():
            if durations.count and api not in BEFORE_SIGN_IN:
                yield f"{durations.count} requests of {ApiKey(api).name} reached a handler"
        strangers = [each for each in broker.node.connections if str(each.principal) != "User:alice"]
        if self._downgraded:
            yield f"{self._downgraded} connections speak TLS 1.1"
        if self._answered:
            yield f"{self._answered} requests were answered to who had no certificate of the authority"
        if broker.node.counters.sign_ins != self._signed_in:
            yield f"alice has signed in {self._signed_in} times, and there are {broker.node.counters.sign_ins} sign-ins"
        if broker.node.cluster.topics:
            yield f"there are topics: {', '.join(broker.node.cluster.topics)}"
        if strangers:
            yield f"{len(strangers)} strangers were let in"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    words = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        findings = UnderFire(Path(folder)).fire(words.connections, words.seed)
    sys.stdout.write("\n".join(findings or [f"{words.connections} connections, and nobody got in"]) + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
