"""How a Kafka cluster is reached: its addresses and the client properties, in the words of each client."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluvial.kafka.client_properties import PASSWORD_MECHANISMS, kafka_properties, require_complete
from fluvial.kafka.java import to_java
from fluvial.properties import NO_PROPERTIES, Given, Properties

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False

_NOT_LIBRDKAFKAS = frozenset({"acks", "session.timeout.ms"})


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """
    A cluster by its `host:port[,…]` and the properties with which it is to be talked to.

    It holds secrets: what it shows of itself, and what `str` gives, are the addresses alone.
    """

    bootstrap_servers: str
    properties: Properties = NO_PROPERTIES

    @classmethod
    def with_properties(cls, bootstrap_servers: str, **properties: str) -> "KafkaCluster":
        """
        A cluster for a program that has the properties at hand, `**{"security.protocol": "SSL", …}`.

        Raises ConfigError for what `kafka_properties` would refuse.
        """
        given = {name: Given(value, name) for name, value in properties.items()}
        return cls(bootstrap_servers, kafka_properties(given))

    def __str__(self) -> str:
        return self.bootstrap_servers

    def as_user(self, name: str, password: str) -> "KafkaCluster":
        """Return the same cluster for clients that sign in as another user, by the same mechanism."""
        given = {each: Given(value, self.properties.where(each)) for each, value in self.properties.pairs}
        given |= {"sasl.username": Given(name, "a user"), "sasl.password": Given(password, "a password")}
        return KafkaCluster(self.bootstrap_servers, Properties.of(given))

    @property
    def protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        return self.properties.get("security.protocol") or "PLAINTEXT"

    def client(self, **more: Any) -> dict[str, Any]:
        """
        Return librdkafka's configuration of a client, with what it needs of its own in `more`.

        A `client.id` in `more` yields to the user's. What the client logs stays off the terminal. Raises ConfigError
        when something is lacking that the properties call for.
        """
        require_complete(self.properties)
        values = self.properties.as_dict()
        conf: dict[str, Any] = {
            name: str(Path(value).expanduser()) if name.endswith(".location") else value
            for name, value in values.items()
            if name not in _NOT_LIBRDKAFKAS
        }
        if values.get("sasl.mechanism") == "OAUTHBEARER":
            conf["sasl.oauthbearer.method"] = "oidc"
        if "group.id" in more and "session.timeout.ms" in values:
            conf["session.timeout.ms"] = values["session.timeout.ms"]
        client_id = values.get("client.id", more.get("client.id", "fluvial"))
        return {"logger": _log, **conf, **more, "bootstrap.servers": self.bootstrap_servers, "client.id": client_id}

    @property
    def has_passwords(self) -> bool:
        """Whether its users sign in by a name and a password."""
        return self.protocol.startswith("SASL") and self.properties.get("sasl.mechanism") in PASSWORD_MECHANISMS

    def spark_options(self) -> dict[str, str]:
        """
        Return the options of Spark's Kafka source, `kafka.` and the names of Java's clients.

        Raises ConfigError for what is lacking, and for what only librdkafka can do.
        """
        require_complete(self.properties)
        java = {"bootstrap.servers": self.bootstrap_servers, **to_java(self.properties)}
        return {f"kafka.{name}": value for name, value in java.items()}
