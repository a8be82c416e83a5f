"""
Whatever a stranger sends to a listener with sign-in: nothing of it may reach a handler, and users get in all the while.

    python tests/fuzz/fuzz_sign_in.py --connections 100000 --seed 2

speaks to an embedded broker, in plain text and over TLS: requests of all apis, sign-ins cut short, out of order,
replayed from another connection or changed in a byte, and noise.
"""

import argparse
import random
import socket
import ssl
import struct
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "unit/log_broker/server/net"), str(Path(__file__).parents[2])]

from certificates import Authority

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.mechanism import SignInError
from log_broker.core.security.scram import ScramClient, credential_of
from log_broker.server.embedded import EmbeddedBroker, run_embedded
from log_broker.wire.apis import APIS, ApiKey
from log_broker.wire.control import write_request

BEFORE_SIGN_IN = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
MECHANISM = ScramMechanism.SHA_256
PASSWORD = b"only alice knows"
STEPS_MAX = 6


class Known:
    """One user."""

    _credential = credential_of(PASSWORD, b"salt", 4096, MECHANISM)

    def scram(self, name, mechanism):
        return self._credential if (name, mechanism) == ("alice", MECHANISM) else None


class Stranger:
    """Draws what is sent, from a seed; keeps what a user said elsewhere to say it again."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self.heard = []

    def frames(self):
        """What one connection sends, with its lengths."""
        for _ in range(self._random.randint(1, STEPS_MAX)):
            frame = self._random.choice(
                (
                    *(self._versions, self._handshake, self._handshake, self._token, self._token),
                    *(self._sound, self._request, self._noise),
                )
            )()
            if self._random.random() < 0.2 and frame:
                frame = bytearray(frame)
                frame[self._random.randrange(len(frame))] ^= 1 << self._random.randrange(8)
            length = len(frame) if self._random.random() < 0.95 else self._random.randint(-5, 1 << 20)
            yield struct.pack(">i", length) + bytes(frame)

    def _versions(self):
        return write_request(ApiKey.API_VERSIONS, 0, 1, "x", {})

    def _handshake(self):
        mechanism = self._random.choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "", "x" * 3000))
        return write_request(ApiKey.SASL_HANDSHAKE, self._random.randint(0, 1), 2, "x", {"mechanism": mechanism})

    def _token(self):
        nonce = str(self._random.random())
        tokens = [
            b"\0alice\0" + self._random.choice((b"", b"wrong", PASSWORD[:-1])),
            ScramClient(MECHANISM, self._random.choice(("alice", "bob")), b"wrong", nonce=nonce).first(),
            b"c=biws,r=" + nonce.encode() + b",p=" + b"A" * 43 + b"=",
            self._random.randbytes(self._random.randint(0, 200)),
            *self.heard,
        ]
        token = self._random.choice(tokens)
        if self._random.random() < 0.3:
            return token
        return write_request(ApiKey.SASL_AUTHENTICATE, self._random.randint(0, 2), 3, "x", {"auth_bytes": token})

    def _sound(self):
        """A request that any handler would answer."""
        key = {"key": "g", "key_type": 0}
        some = {"topics": None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
        api, version, values = self._random.choice(
            (
                (ApiKey.METADATA, 12, some),
                (ApiKey.LIST_GROUPS, 0, {}),
                (ApiKey.FIND_COORDINATOR, 3, key),
                (ApiKey.ENVELOPE, 0, {"request_data": b"x", "request_principal": b"", "client_host_address": b""}),
            )
        )
        return write_request(api, version, 5, self._random.choice(("broker", "__admin_client", "x")), values)

    def _request(self):
        api = APIS[self._random.choice(list(APIS))]
        version = self._random.randint(api.version_min, api.version_max)
        client = self._random.choice((b"broker", b"__admin_client", b""))
        body = self._random.randbytes(self._random.randint(0, 60))
        return struct.pack(">hhih", api.key, version, 4, len(client)) + client + b"\0" + body

    def _noise(self):
        return self._random.randbytes(self._random.randint(0, 300))


class UnderFire:
    """A broker with a listener in plain text and one with TLS, both with sign-in."""

    def __init__(self, folder):
        authority = Authority(folder)
        self._settings = {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.jaas.config": 'x required username="node" password="between";',
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "ssl.keystore.location": authority.issue("broker"),
            "ssl.truststore.location": authority.path,
            "connection.failed.authentication.delay.ms": 0,
        }
        self._context = ssl.create_default_context(cafile=str(authority.path))

    def fire(self, connections, seed):
        """Send; return what should not have happened."""
        settings = {"data_dir": None, "port": 0, "validator": None, "topics": {}, "known_users": Known()}
        with run_embedded(settings=self._settings, **settings) as broker:
            stranger = Stranger(seed)
            for number in range(connections):
                if number % 50 == 0:
                    stranger.heard = self._said_by_alice(broker)
                self._connection(broker, stranger, is_secured=number % 4 == 0)
            return list(self._findings(broker))

    def _connection(self, broker, stranger, *, is_secured):
        client = self._connected(broker, is_secured)
        try:
            for frame in stranger.frames():
                client.sendall(frame)
            client.settimeout(0.002)
            while client.recv(65536):
                pass
        except (OSError, ValueError):
            pass
        finally:
            client.close()

    def _connected(self, broker, is_secured):
        name = "SASL_SSL" if is_secured else "SASL_PLAINTEXT"
        port = next(each.port for each in broker.node.listeners if each.name == name)
        client = socket.create_connection(("127.0.0.1", port), timeout=20)
        return self._context.wrap_socket(client, server_hostname="127.0.0.1") if is_secured else client

    def _said_by_alice(self, broker: EmbeddedBroker):
        """Sign in as a user does, and return the messages that were sent."""
        with self._connected(broker, is_secured=False) as client:
            scram = ScramClient(MECHANISM, "alice", PASSWORD, nonce="alice's")

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
