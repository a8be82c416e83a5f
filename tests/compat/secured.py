"""
A secured broker, and what each client calls the ways to sign in to it.

With `make compat SECURE=1` the suites' shared brokers are secured: their `bootstrap_servers` are listeners of SASL_SSL,
where the tests sign in by SCRAM-SHA-512 as a super user. `librdkafka(servers)` and its like give a client's settings
for whatever servers a test has: for those of a secured broker with what it asks for.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.free_ports import free_ports
from tests.peers.secured_kafka import Authority, Pair

SECURE = os.environ.get("FLUVIAL_COMPAT_SECURE") == "1"
USER = "ada"
PASSWORD = "open,sesame=1"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MUTUAL_TLS = "mTLS"
REAUTHENTICATION_MS = 5000
WAYS = (*MECHANISMS, MUTUAL_TLS)

_SECURITY = "org.apache.kafka.common.security"
_SETTINGS = """\
listeners={own}://127.0.0.1:{port},SSL://127.0.0.1:{mutual},SASL_PLAINTEXT://127.0.0.1:{clear},SHORT://127.0.0.1:{short}
listener.security.protocol.map=SHORT:SASL_SSL
inter.broker.listener.name={between}
listener.name.short.connections.max.reauth.ms={reauth}
connections.max.reauth.ms={reauth}
listener.name.sasl_ssl.connections.max.reauth.ms=600000
sasl.enabled.mechanisms={mechanisms}
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.jaas.config={security}.scram.ScramLoginModule required username="node" password="between" user_{user}="{password}";
connection.failed.authentication.delay.ms=100
authorizer.class.name=fluvial
super.users={super_users}
allow.everyone.if.no.acl.found={everyone}
ssl.keystore.location={certificate}
ssl.truststore.location={authority}
listener.name.ssl.ssl.client.auth=required
listener.name.ssl.ssl.principal.mapping.rules=RULE:^CN=([a-z]+)$/$1/
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One way into a broker: where, how, and as whom. Without a mechanism it is by the certificate."""

    servers: str
    authority: Path
    certificate: Pair
    keystore: Path
    mechanism: str
    protocol: str = "SASL_SSL"
    user: str = USER
    password: str = PASSWORD

    def librdkafka(self) -> dict[str, str]:
        """As librdkafka, and so confluent-kafka and kcat, have it."""
        if self.mechanism == MUTUAL_TLS:
            own = self.own_certificate()
        else:
            own = {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return {"security.protocol": self.protocol, "ssl.ca.location": str(self.authority), **own}

    def own_certificate(self) -> dict[str, str]:
        """The certificate and its key, as librdkafka has them."""
        return {
            "ssl.certificate.location": str(self.certificate.certificate),
            "ssl.key.location": str(self.certificate.key),
        }

    def java(self) -> dict[str, str]:
        """As the Java clients have it, and Spark's source after the prefix `kafka.`."""
        if self.mechanism == MUTUAL_TLS:
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.keystore)}
        else:
            module = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            login = f'{_SECURITY}.{module}LoginModule required username="{self.user}" password="{self.password}";'
            own = {"sasl.mechanism": self.mechanism, "sasl.jaas.config": login}
        return {
            "security.protocol": self.protocol,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            **own,
        }

    def kafka_python(self) -> dict[str, Any]:
        """As kafka-python has it."""
        own: dict[str, Any] = {"security_protocol": self.protocol, "ssl_cafile": str(self.authority)}
        if self.mechanism == MUTUAL_TLS:
            pair = self.certificate
            return own | {"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key)}
        return own | self._password()

    def aiokafka(self) -> dict[str, Any]:
        """As aiokafka has it."""
        context = ssl.create_default_context(cafile=str(self.authority))
        own: dict[str, Any] = {"security_protocol": self.protocol, "ssl_context": context}
        if self.mechanism == MUTUAL_TLS:
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
            return own
        return own | self._password()

    def kafkajs(self) -> dict[str, Any]:
        """As KafkaJS has it."""
        tls = {"ca": [self.authority.read_text()]}
        if self.mechanism == MUTUAL_TLS:
            pair = self.certificate
            return {"ssl": {**tls, "cert": pair.certificate.read_text(), "key": pair.key.read_text()}}
        sasl = {"mechanism": self.mechanism.lower(), "username": self.user, "password": self.password}
        return {"ssl": tls, "sasl": sasl}

    def _password(self) -> dict[str, str]:
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


class Security:
    """
    The certificates and users of one cluster, and the ways into it.

    Each node has four listeners. The first is SASL_SSL, by which nodes reach each other too; or PLAINTEXT where the
    cluster is not `closed`, and then nodes sign in elsewhere: not everybody is to be taken for one. Who signs in is a
    super user, unless it is `lenient`: then what no ACL is about is open to everybody, and what one is about is not.
    The other listeners ask for a certificate (SSL), for a sign-in without encryption (SASL_PLAINTEXT), and for a
    sign-in again every few seconds (SASL_SSL).
    """

    def __init__(self, folder: Path, *, closed: bool = True, lenient: bool = False) -> None:
        self.folder = folder
        self.closed = closed
        self._lenient = lenient or not closed
        self.authority = Authority(folder, "authority")
        self._client = self.authority.issue(USER)
        self._keystore = self._client.joined(folder / "client-store.pem")
        self._certificate = self.authority.issue("node").joined(folder / "node-store.pem")
        self._stranger = Authority(folder / "strangers", "stranger").issue(USER)
        self._servers: dict[str, list[str]] = {"SSL": [], "SASL_PLAINTEXT": [], "SHORT": []}

    def settings_of_a_node(self, port: int) -> Path:
        """Write the file of settings of one more node, whose first listener has this port."""
        names = tuple(self._servers)
        ports = dict(zip(names, free_ports(len(names)), strict=True))
        for name, each in ports.items():
            self._servers[name].append(f"127.0.0.1:{each}")
        path = self.folder / f"server-{port}.properties"
        path.write_text(
            _SETTINGS.format(
                **{"port": port, "mutual": ports["SSL"], "clear": ports["SASL_PLAINTEXT"], "short": ports["SHORT"]},
                **{"user": USER, "password": PASSWORD, "reauth": REAUTHENTICATION_MS},
                own="SASL_SSL" if self.closed else "PLAINTEXT",
                between="SASL_SSL" if self.closed else "SASL_PLAINTEXT",
                everyone=str(self._lenient).lower(),
                super_users="User:node" if self._lenient else f"User:node;User:{USER}",
                mechanisms=",".join(MECHANISMS),
                security=_SECURITY,
                certificate=self._certificate,
                authority=self.authority.certificate,
            )
        )
        return path

    def ports_between_nodes(self, ports: Sequence[int]) -> list[int]:
        """By which nodes of these first ports reach each other, once all have their settings."""
        if self.closed:
            return list(ports)
        return [int(server.rpartition(":")[2]) for server in self._servers["SASL_PLAINTEXT"]]

    def servers(self, listener: str) -> str:
        """Where the listeners SSL, SASL_PLAINTEXT or SHORT of all nodes are."""
        return ",".join(self._servers[listener])

    def certificate_in_every_form(self) -> dict[str, str]:
        """Files of the client's certificate, key and authority, by the names that librdkafka's tests have for them."""
        key = serialization.load_pem_private_key(self._client.key.read_bytes(), None)
        own, authority = (
            x509.load_pem_x509_certificate(path.read_bytes())
            for path in (self._client.certificate, self.authority.certificate)
        )
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        der, secret = serialization.Encoding.DER, PASSWORD.encode()
        private = key.private_bytes(der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        locked = serialization.BestAvailableEncryption(secret)
        forms = {
            "SSL_pkcs": pkcs12.serialize_key_and_certificates(b"client", key, own, [authority], locked),
            "SSL_pub_der": own.public_bytes(der),
            "SSL_pub_pem": self._client.certificate.read_bytes(),
            "SSL_priv_der": private,
            "SSL_priv_pem": self._client.key.read_bytes(),
            "SSL_ca_der": authority.public_bytes(der),
            "SSL_all_cas_pem": self.authority.certificate.read_bytes(),
        }
        for name, content in forms.items():
            (self.folder / name).write_bytes(content)
        return {**{name: str(self.folder / name) for name in forms}, "SSL_password": PASSWORD}

    def access(self, servers: str, mechanism: str = "SCRAM-SHA-512", *, welcome: bool = True) -> Access:
        """The way in by a mechanism; who is not welcome has another password, or a certificate that nobody knows."""
        mutual = mechanism == MUTUAL_TLS
        pair = self._client if welcome else self._stranger
        return Access(
            servers=self.servers("SSL") if mutual else servers,
            authority=self.authority.certificate,
            certificate=pair,
            keystore=self._keystore if welcome else pair.joined(self.folder / "stranger-store.pem"),
            mechanism=mechanism,
            protocol="SSL" if mutual else "SASL_SSL",
            password=PASSWORD if welcome else "guessed",
        )


_KNOWN: dict[str, Access] = {}


def remember(access: Access) -> None:
    """From now on the functions below give whoever has these servers this way in."""
    _KNOWN[access.servers] = access
    for server in access.servers.split(","):
        _KNOWN[server] = access


def access_of(servers: str) -> Access | None:
    """The way into these servers; None where nobody asks."""
    return _KNOWN.get(servers)


def librdkafka(servers: str) -> dict[str, Any]:
    """Settings by which confluent-kafka reaches these servers."""
    return {"bootstrap.servers": servers} | ({} if (access := access_of(servers)) is None else access.librdkafka())


def java(servers: str) -> dict[str, str]:
    """Settings by which a Java client reaches these servers."""
    return {"bootstrap.servers": servers} | ({} if (access := access_of(servers)) is None else access.java())


def java_file(servers: str) -> Path | None:
    """The same as a file for Kafka's tools, without the servers; None where nobody asks who is there."""
    access = access_of(servers)
    if access is None:
        return None
    return properties_file(access.java(), access.keystore.with_name("client.properties"))


def spark(servers: str) -> dict[str, str]:
    """Options by which Spark's source and sink reach these servers."""
    return {f"kafka.{name}": value for name, value in java(servers).items()}


def kafka_python(servers: str) -> dict[str, Any]:
    """Settings by which kafka-python reaches these servers."""
    return {"bootstrap_servers": servers} | ({} if (access := access_of(servers)) is None else access.kafka_python())


def aiokafka(servers: str) -> dict[str, Any]:
    """Settings by which aiokafka reaches these servers."""
    return {"bootstrap_servers": servers} | ({} if (access := access_of(servers)) is None else access.aiokafka())


def kafkajs(servers: str) -> dict[str, Any]:
    """Settings by which KafkaJS reaches these servers."""
    return {"brokers": servers.split(",")} | ({} if (access := access_of(servers)) is None else access.kafkajs())


def properties_file(settings: Mapping[str, str], path: Path) -> Path:
    """Write settings as a Java program reads them from a file."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
