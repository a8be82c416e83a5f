"""
Apache Kafka with listeners that ask who is there, and the certificates for them, made again each time.

    with SecuredKafka(folder) as kafka:
        kafka.scram      # properties of a client that signs in by SCRAM over TLS
        kafka.mutual     # of one that shows a certificate
"""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fluvial.local import certificates
from tests.bench.broker.servers import KAFKA_ID, KAFKA_PROPERTIES, Kafka
from tests.free_ports import free_ports
from tests.peers.kafka_jars import run_kafka

USER = "ada"
PASSWORD = 'p"a\\ss, wörd=1'
"""What has a meaning of its own in JAAS, in SCRAM, in properties files or in none of them."""
SCRAM_PASSWORD = "lovelace-1815"

LISTENERS = """
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={broker}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={security}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
"""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path

    def joined(self, path: Path) -> Path:
        """Write both to one file, as Java's PEM keystores want them."""
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


class Authority:
    """A certificate authority of one test, with all that it signs in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._authority = certificates.Authority(name, days=1)
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(self._authority.certificate)

    def issue(self, name: str) -> Pair:
        """A certificate for `name` at this machine's loopback address."""
        pair = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        certificate, key = self._authority.issue(certificates.common_name(name), ("127.0.0.1",))
        pair.certificate.write_bytes(certificate)
        pair.key.write_bytes(key)
        return pair


class SecuredKafka(Kafka):
    """Kafka at `sasl` (PLAIN and SCRAM-SHA-512 over TLS) and `mutual` (TLS with certificates on both sides)."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.authority = Authority(folder / "certificates", "authority")
        self.client = self.authority.issue("client")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def prepare(self) -> None:
        self.port, sasl, mutual, controller = free_ports(4)
        self.sasl, self.mutual_tls = f"127.0.0.1:{sasl}", f"127.0.0.1:{mutual}"
        broker = self.authority.issue("broker").joined(self.folder / "certificates" / "broker-store.pem")
        # Once for JAAS, and once more for the properties file around it.
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        secured = LISTENERS.format(
            listeners=f"PLAINTEXT://{self.address},SASL_SSL://{self.sasl},SSL://{self.mutual_tls}",
            controller=controller,
            security="org.apache.kafka.common.security",
            broker=broker,
            authority=self.authority.certificate,
            user=USER,
            password=password.encode("ascii", "backslashreplace").decode().replace("\\xf6", "\\u00f6"),
        )
        self._properties.write_text(
            KAFKA_PROPERTIES.format(port=self.port, controller=controller, data=self.data_dir, more=secured)
        )
        scram = f"SCRAM-SHA-512=[name={USER},password={SCRAM_PASSWORD}]"
        words = ("format", "-t", KAFKA_ID, "-c", self._properties, "--add-scram", scram)
        done = run_kafka("kafka.tools.StorageTool", *words)
        if done.returncode:
            raise RuntimeError(f"Kafka's data directory could not be formatted:\n{done.stdout}{done.stderr}")

    @property
    def plain(self) -> dict[str, str]:
        """What a client signs in with by PLAIN."""
        return self._sasl("PLAIN", PASSWORD)

    @property
    def scram(self) -> dict[str, str]:
        """What a client signs in with by SCRAM."""
        return self._sasl("SCRAM-SHA-512", SCRAM_PASSWORD)

    @property
    def mutual(self) -> dict[str, str]:
        """What a client shows that has a certificate."""
        return {
            "bootstrap.servers": self.mutual_tls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(self.client.certificate),
            "ssl.key.location": str(self.client.key),
        }

    def _sasl(self, mechanism: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(self.authority.certificate),
        }
