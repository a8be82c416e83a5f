"""
The client properties that are known, and what holds between them.

Names are librdkafka's; those under which Java's clients know the same are understood as well.
"""

from collections.abc import Mapping
from pathlib import Path

from fluvial.errors import ConfigError
from fluvial.kafka.java import without_java_names
from fluvial.properties import FILE, FLAG, MILLISECONDS, SECRET, TEXT, Given, Properties, Property, checked, one_of

SERVERS = "bootstrap.servers"
ENVIRONMENT = "FLUVIAL_KAFKA_"
"""What the variables begin with: FLUVIAL_KAFKA_SASL_PASSWORD is `sasl.password`."""

KNOWN: Mapping[str, Property] = {
    "security.protocol": one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl.mechanism": one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
    "sasl.username": TEXT,
    "sasl.password": SECRET,
    "sasl.oauthbearer.method": one_of("oidc"),
    "sasl.oauthbearer.token.endpoint.url": Property(
        check=lambda text: text.startswith(("http://", "https://")), repair="write https://host/path"
    ),
    "sasl.oauthbearer.client.id": TEXT,
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.scope": TEXT,
    "sasl.oauthbearer.extensions": Property(
        check=lambda text: all("=" in each for each in text.split(",")), repair="write name=value, several with commas"
    ),
    "ssl.ca.location": FILE,
    "ssl.ca.pem": TEXT,
    "ssl.certificate.location": FILE,
    "ssl.certificate.pem": TEXT,
    "ssl.key.location": FILE,
    "ssl.key.pem": SECRET,
    "ssl.key.password": SECRET,
    "ssl.keystore.location": FILE,
    "ssl.keystore.password": SECRET,
    "ssl.endpoint.identification.algorithm": Property(
        check=lambda text: text.lower() in {"https", "none", ""}, repair="write https or none"
    ),
    "enable.ssl.certificate.verification": FLAG,
    "client.id": TEXT,
    "client.rack": TEXT,
    "client.dns.lookup": one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "connections.max.idle.ms": MILLISECONDS,
    "metadata.max.age.ms": MILLISECONDS,
    "reconnect.backoff.ms": MILLISECONDS,
    "reconnect.backoff.max.ms": MILLISECONDS,
    "session.timeout.ms": MILLISECONDS,
    "socket.connection.setup.timeout.ms": MILLISECONDS,
    # Producers here have no other; in the files that clusters hand out it stands all the same.
    "acks": Property(check=lambda text: text in {"all", "-1"}, repair="write all, or leave it out"),
}
ALIASES: Mapping[str, str] = {
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
SECRETS = frozenset(name for name, each in KNOWN.items() if each.secret)

_OWN = frozenset(
    {
        *("auto.offset.reset", "compression.type", "enable.auto.commit", "enable.auto.offset.store"),
        *("enable.idempotence", "enable.partition.eof", "group.id", "group.protocol", "isolation.level"),
        *("key.deserializer", "key.serializer", "linger.ms", "partitioner", "transactional.id"),
        *("value.deserializer", "value.serializer"),
    }
)
PASSWORD_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_OIDC = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.token.endpoint.url")


def kafka_properties(given: Mapping[str, Given]) -> Properties:
    """
    Check properties as they were given and return them under librdkafka's names.

    Raises ConfigError for a name that is not known or cannot be translated, a value that will not do, and properties
    that contradict each other. What is lacking is told when a client is made: see `require_complete`.
    """
    for name, each in given.items():
        if name in _OWN:
            raise ConfigError(f"{each.where}: each client here sets {name} as it needs it; leave it out")
    found = checked(without_java_names(given), KNOWN, ALIASES)
    for name in ("security.protocol", "sasl.mechanism"):
        if name in found:
            found[name] = Given(found[name].value.upper(), found[name].where)
    _refuse_contradictions(found)
    return Properties.of(found)


def _refuse_contradictions(found: Mapping[str, Given]) -> None:
    protocol = found["security.protocol"].value if "security.protocol" in found else "PLAINTEXT"
    for name, each in found.items():
        # A variable may be exported for another cluster than the one that is meant now.
        if each.where.startswith(ENVIRONMENT):
            continue
        if name.startswith("sasl.") and not protocol.startswith("SASL"):
            raise ConfigError(f"{each.where}: has no use with security.protocol {protocol}; write SASL_SSL there")
        if name.startswith(("ssl.", "enable.ssl.")) and not protocol.endswith("SSL"):
            raise ConfigError(
                f"{each.where}: has no use with security.protocol {protocol}; write SSL or SASL_SSL there"
            )
    for one, other in (
        ("ssl.ca.location", "ssl.ca.pem"),
        ("ssl.certificate.location", "ssl.certificate.pem"),
        ("ssl.key.location", "ssl.key.pem"),
        ("ssl.keystore.location", "ssl.certificate.location"),
    ):
        if one in found and other in found:
            raise ConfigError(f"{found[other].where}: {one} stands at {found[one].where}; leave one of them out")


def require_complete(properties: Properties) -> None:
    """Raise ConfigError for what a client would lack: a user's name, a password, the key to a certificate, a file."""
    values = properties.as_dict()
    protocol = values.get("security.protocol", "PLAINTEXT")

    def need(name: str, why: str) -> None:
        if name not in values:
            variable = f" or set {ENVIRONMENT}{name.upper().replace('.', '_')}" if name in SECRETS else ""
            raise ConfigError(f"{properties.where(why)}: {values[why]} needs {name}; write it beside it{variable}")

    if protocol.startswith("SASL"):
        need("sasl.mechanism", "security.protocol")
        lacks = ("sasl.username", "sasl.password") if values["sasl.mechanism"] in PASSWORD_MECHANISMS else _OIDC
        for name in lacks:
            need(name, "sasl.mechanism")
    if protocol.endswith("SSL"):
        _require_files(properties)
        has_key = not values.keys().isdisjoint({"ssl.key.location", "ssl.key.pem"})
        for name in ("ssl.certificate.location", "ssl.certificate.pem"):
            if name in values and not has_key:
                raise ConfigError(f"{properties.where(name)}: needs its key; write ssl.key.location beside it")


def _require_files(properties: Properties) -> None:
    for name, value in properties.pairs:
        if not name.endswith(".location"):
            continue
        try:
            if name == "ssl.ca.location" and (value == "probe" or Path(value).expanduser().is_dir()):
                continue
            with Path(value).expanduser().open("rb"):
                pass
        except OSError as error:
            raise ConfigError(
                f"{properties.where(name)}: {value}: {error.strerror}; write the path of a file"
            ) from error
