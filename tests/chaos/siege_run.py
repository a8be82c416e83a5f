"""
A broker that is secured, under whoever wears it out: memory and descriptors before and after.

    python tests/chaos/siege_run.py                                    15,000 handshakes and 3,000 slow strangers
    python tests/chaos/siege_run.py --handshakes 300 --slow 60

A producer writes by SASL_SSL all the while. Handshakes come and go, some broken off and some of users who sign in,
while the broker's certificate is replaced again and again, once in a while by a file that cannot be used. Strangers
dribble: a byte of a handshake at a time, or of a request before sign-in. Then a user is removed who is connected.
"""

import argparse
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "unit/log_broker/server/net"), str(Path(__file__).parents[2])]

import psutil
from certificates import Authority
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ScramMechanism as ClientMechanism

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.scram import ScramClient
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request
from tests.free_ports import free_ports

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "carol", b"paper"
REAUTH_MS = 30_000
GROWTH_MIB_MAX = 24.0
"""What is left open to chance: an allocator keeps pages, and the log that is produced to grows."""
WAIT_SECONDS = 60.0
HELLO = bytes.fromhex("160301020001000001fc0303") + bytes(32)
"""The beginning of a handshake whose rest does not come."""


class Secured:
    """A broker process with one listener, SASL_SSL."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.authority.issue("broker")
        (self.port,) = free_ports(1)
        self._folder = folder
        settings = {
            "listeners": f"SASL_SSL://127.0.0.1:{self.port}",
            "security.inter.broker.protocol": "SASL_SSL",
            "ssl.keystore.location": folder / "broker.pem",
            "ssl.truststore.location": self.authority.path,
            "sasl.jaas.config": 'x required username="node" password="between" user_admin="first";',
            "authorizer.class.name": "fluvial",
            "super.users": f"User:node;User:admin;User:{USER}",
            "connections.max.reauth.ms": REAUTH_MS,
        }
        path = folder / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        words = [sys.executable, "-m", "log_broker", "--data-dir", str(folder / "data"), "--config", str(path)]
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=self._log, stderr=self._log)
        self._measured = psutil.Process(self.process.pid)

    def client(self, user: str = "admin", password: str = "first") -> dict[str, object]:
        """Settings of a stock client."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self.port}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.path),
            "log_level": 0,
        }

    @property
    def memory_mib(self) -> float:
        return float(self._measured.memory_full_info().uss / 2**20)

    @property
    def descriptors(self) -> int:
        # Files of logs that it makes meanwhile, such as that of its events, are nobody's doing.
        return int(self._measured.num_fds()) - len(self._measured.open_files())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def log_text(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class Stranger:
    """One connection that speaks frames over TLS."""

    def __init__(self, secured: Secured, context: ssl.SSLContext) -> None:
        self.socket = context.wrap_socket(secured.connect(), server_hostname="127.0.0.1")

    @property
    def certificate(self) -> bytes:
        """What the broker showed."""
        return self.socket.getpeercert(binary_form=True) or b""

    def sign_in(self, name: str, password: bytes) -> bool:
        """Sign in by SCRAM, for the first time or again."""
        scram = ScramClient(ScramMechanism.SHA_256, name, password, nonce=str(time.monotonic_ns()))
        if self._ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": ScramMechanism.SHA_256}).error_code:
            return False
        first = self._ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.first()})
        if first.error_code:
            return False
        last = self._ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": scram.final(first.auth_bytes)})
        return bool(last.error_code == 0)

    def is_served(self) -> bool:
        """Whether a request that needs a sign-in is answered."""
        try:
            self._ask(ApiKey.LIST_GROUPS, 0, {})
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()

    def _ask(self, api: ApiKey, version: int, values: dict[str, object]):  # type: ignore[no-untyped-def]
        request = write_request(api, version, 1, "siege", values)
        self.socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._exactly(4))
        return read_response(api, version, memoryview(self._exactly(size))[4:])

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("closed")
            data += more
        return data


class Load:
    """A producer that writes until it is stopped; nothing of what is acknowledged may be lost."""

    def __init__(self, secured: Secured) -> None:
        self._settings = secured.client()
        self.acknowledged: set[int] = set()
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def lost(self) -> set[int]:
        """Read everything back; return what was acknowledged and is not there."""
        consumer = Consumer({**self._settings, "group.id": "siege", "enable.partition.eof": True})
        consumer.assign([TopicPartition("load", 0, 0)])
        found = set()
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.add(int(message.value() or b"-1"))
        consumer.close()
        return self.acknowledged - found

    def _run(self) -> None:
        producer = Producer({**self._settings, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._is_over.wait(0.01):
            for _ in range(10):
                producer.produce("load", str(number).encode(), on_delivery=self._told(number))
                number += 1
            producer.poll(0)
        producer.flush(WAIT_SECONDS)

    def _told(self, number: int) -> Callable[[object, object], None]:
        def told(error: object, _: object) -> None:
            if error is None:
                self.acknowledged.add(number)
            else:
                self.errors.append(str(error))

        return told


class Siege:
    """What is done to one broker; `say` gets a line of each."""

    def __init__(self, secured: Secured, say: Callable[[str], None]) -> None:
        self._secured = secured
        self._say = say
        self._context = ssl.create_default_context(cafile=str(secured.authority.path))
        self.findings: list[str] = []

    def run(self, handshakes: int, slow: int) -> None:
        admin = self._started()
        load = Load(self._secured)
        try:
            self._handshakes(200)  # what is made once is made
            before = self._secured.memory_mib, self._secured.descriptors
            self._rotation(handshakes)
            self._settle("after handshakes", before)
            for _ in range(2):
                self._slowloris(slow)
                self._settle("after slow strangers", before)
            self._revocation(admin)
        finally:
            load.stop()
        lost = load.lost()
        self._say(f"{len(load.acknowledged)} records were acknowledged meanwhile, {len(lost)} of them are lost")
        self._expect(not lost and not load.errors and bool(load.acknowledged), f"lost {lost}, failed {load.errors[:3]}")
        self._expect("Traceback" not in self._secured.log_text(), "a traceback is in the broker's log")

    def _started(self) -> AdminClient:
        admin = AdminClient(self._secured.client())
        admin.list_topics(timeout=WAIT_SECONDS)
        admin.create_topics([NewTopic("load", 1, 1)])["load"].result(WAIT_SECONDS)
        info = ScramCredentialInfo(ClientMechanism.SCRAM_SHA_256, 4096)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, info, PASSWORD)])
        made[USER].result(WAIT_SECONDS)
        return admin

    def _expect(self, condition: bool, finding: str) -> None:
        if not condition:
            self.findings.append(finding)

    def _handshakes(self, count: int) -> set[bytes]:
        """Come and go so many times, in four threads; return the certificates that were seen."""
        with ThreadPoolExecutor(4) as pool:
            return set(pool.map(self._come_and_go, range(count)))

    def _come_and_go(self, number: int) -> bytes:
        if number % 5 == 4:  # break off
            with self._secured.connect() as stranger, suppress(OSError):
                stranger.sendall(HELLO[: number % len(HELLO)])
            return b""
        stranger = Stranger(self._secured, self._context)
        try:
            if number % 3 == 0:
                self._expect(stranger.sign_in(USER, PASSWORD), "a user was not let in while handshakes came")
            return stranger.certificate
        finally:
            stranger.close()

    def _rotation(self, count: int) -> None:
        is_over = threading.Event()
        shown: list[bytes] = []
        path = self._secured.authority.folder / "broker.pem"

        def replace() -> None:
            while not is_over.wait(1.5):
                if len(shown) % 4 == 3:
                    path.write_text("no certificate")  # stays for a while
                    shown.append(b"")
                    continue
                self._secured.authority.issue("broker")
                shown.append(ssl.PEM_cert_to_DER_cert(path.read_text().partition("-----BEGIN PRIVATE")[0]))

        thread = threading.Thread(target=replace)
        thread.start()
        began = time.monotonic()
        try:
            seen = self._handshakes(count) - {b""}
        finally:
            is_over.set()
            thread.join()
        seconds = time.monotonic() - began
        self._secured.authority.issue("broker")
        last = ssl.PEM_cert_to_DER_cert(path.read_text().partition("-----BEGIN PRIVATE")[0])
        self._until(lambda: self._shows() == last, "the certificate that was written last is not shown")
        self._say(
            f"{count} handshakes in {seconds:.0f} s, {count / seconds:.0f} a second; {len(shown)} times another file, "
            f"{len(seen)} certificates were shown"
        )

    def _shows(self) -> bytes:
        stranger = Stranger(self._secured, self._context)
        try:
            return stranger.certificate
        finally:
            stranger.close()

    def _slowloris(self, count: int) -> None:
        """Dribble on so many connections, each a byte at a time; users must get in all the while."""
        slow: list[socket.socket] = []
        most = self._secured.memory_mib
        for number in range(count):
            if number % 2:
                slow.append(self._context.wrap_socket(self._secured.connect(), server_hostname="127.0.0.1"))
                with suppress(OSError):
                    slow[-1].sendall(struct.pack(">i", 500_000) + bytes(4_000))
            else:
                slow.append(self._secured.connect())
            with suppress(OSError):
                slow[number // 2].sendall(HELLO[:1])
            if number % 50 == 49:
                most = max(most, self._secured.memory_mib)
                self._come_and_go(3)
        held = self._secured.descriptors
        self._say(f"{count} slow strangers: {held} descriptors open, at most {most:.0f} MiB of memory")
        self._come_and_go(3)
        for each in slow:
            each.close()

    def _settle(self, when: str, before: tuple[float, int]) -> None:
        """Wait until no descriptor is left that was not there, nor memory."""
        memory, descriptors = before
        self._until(lambda: self._secured.descriptors <= descriptors, f"{when} more descriptors than {descriptors}")
        self._until(
            lambda: self._secured.memory_mib <= memory + GROWTH_MIB_MAX,
            f"{when} {self._secured.memory_mib:.0f} MiB of memory, {memory:.0f} before",
        )
        self._say(
            f"{when}: memory {memory:.0f} MiB before, {self._secured.memory_mib:.0f} MiB now; descriptors "
            f"{descriptors} before, {self._secured.descriptors} now"
        )

    def _revocation(self, admin: AdminClient) -> None:
        """As with Kafka, who is connected stays until the sign-in ends; who comes anew is not let in."""
        open_one = Stranger(self._secured, self._context)
        for _ in range(2):
            self._expect(open_one.sign_in(USER, PASSWORD), "a user is not let in, or not again")
        time.sleep(1.1)  # who signs in again does so once a second at most
        gone = admin.alter_user_scram_credentials([UserScramCredentialDeletion(USER, ClientMechanism.SCRAM_SHA_256)])
        gone[USER].result(WAIT_SECONDS)
        self._until(lambda: not self._lets_in(), "a user who was removed is let in")
        self._expect(open_one.is_served(), "an open connection ended before its sign-in did")
        with suppress(OSError):
            self._expect(not open_one.sign_in(USER, PASSWORD), "a user who was removed signs in again")
        self._until(lambda: not open_one.is_served(), "a user who was removed is served after another sign-in")
        self._say("a user who was removed is served on an open connection, and not let in again")
        open_one.close()

    def _lets_in(self) -> bool:
        stranger = Stranger(self._secured, self._context)
        try:
            return stranger.sign_in(USER, PASSWORD)
        finally:
            stranger.close()

    def _until(self, holds: Callable[[], bool], finding: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                self.findings.append(f"{finding}; {self._secured.descriptors} descriptors")
                return
            time.sleep(0.1)


def besiege(folder: Path, handshakes: int, slow: int, say: Callable[[str], None]) -> list[str]:
    """Do all of it to a broker of its own; return what should not have happened."""
    secured = Secured(folder)
    try:
        siege = Siege(secured, say)
        siege.run(handshakes, slow)
        return siege.findings
    finally:
        secured.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--handshakes", type=int, default=15_000)
    parser.add_argument("--slow", type=int, default=3_000, help="connections that dribble (default: 3,000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        findings = besiege(Path(folder), options.handshakes, options.slow, lambda line: print(line, flush=True))
    print("\n".join(findings) or "as it should be")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
