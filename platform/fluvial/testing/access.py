"""How an embedded platform is reached whose settings secure it: as its nodes reach each other, in clients' words."""

from fluvial.kafka.client_properties import kafka_properties
from fluvial.properties import NO_PROPERTIES, Given, Properties
from fluvial.registry.endpoint import registry_properties
from log_broker.config.broker import BrokerConfig
from log_broker.core.security.listeners import listeners_of

_SHOWN = ("ssl.certificate.location", "ssl.key.location")
_WHERE = "the embedded platform"


def access_to(config: BrokerConfig) -> tuple[Properties, Properties]:
    """
    Return the client properties for the broker and for the registry of a node with these settings, none in plain text.

    Certificates are those of files; PEM texts in settings are for nodes alone.
    """
    found = listeners_of(config.security, config.host, config.port, config.advertised_host)
    if not found.is_secured:
        return NO_PROPERTIES, NO_PROPERTIES
    kafka: dict[str, str] = {"security.protocol": found.own.protocol.value}
    registry: dict[str, str] = {}
    if found.own.tls is not None:
        for properties in (kafka, registry):
            if found.own.tls.trusted_location:
                properties["ssl.ca.location"] = found.own.tls.trusted_location
            if found.account is None and found.own.tls.location:
                properties.update(dict.fromkeys(_SHOWN, found.own.tls.location))
    if found.account is not None:
        kafka |= {
            "sasl.mechanism": found.account.mechanism,
            "sasl.username": found.account.name,
            "sasl.password": found.account.password,
        }
        registry["basic.auth.user.info"] = f"{found.account.name}:{found.account.password}"
    return kafka_properties(_given(kafka)), registry_properties(_given(registry))


def _given(values: dict[str, str]) -> dict[str, Given]:
    return {name: Given(value, _WHERE) for name, value in values.items()}
