"""
How a schema registry is reached: its addresses and the client properties, in the words of each client.

Names are those of Confluent's Python client; Java's for the same are understood as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from fluvial.errors import ConfigError
from fluvial.kafka.java import without_java_names
from fluvial.properties import FILE, NO_PROPERTIES, SECRET, TEXT, Given, Properties, Property, checked, one_of

if TYPE_CHECKING:
    from fluvial.registry.client import RegistryClient

ENVIRONMENT = "FLUVIAL_REGISTRY_"
"""What the variables begin with: FLUVIAL_REGISTRY_BEARER_AUTH_TOKEN is `bearer.auth.token`."""
USER_INFO = "basic.auth.user.info"

KNOWN: Mapping[str, Property] = {
    USER_INFO: Property(
        check=lambda text: ":" in text[1:], repair="write NAME:PASSWORD, or an API key and its secret", secret=True
    ),
    "basic.auth.credentials.source": one_of("USER_INFO", "URL"),
    "bearer.auth.token": SECRET,
    "bearer.auth.credentials.source": one_of("STATIC_TOKEN"),
    "bearer.auth.logical.cluster": TEXT,
    "bearer.auth.identity.pool.id": TEXT,
    "ssl.ca.location": FILE,
    "ssl.certificate.location": FILE,
    "ssl.key.location": FILE,
    "ssl.key.password": SECRET,
}
ALIASES: Mapping[str, str] = {"user.info": USER_INFO}
PREFIX = "schema.registry."
_OURS = (PREFIX, "basic.auth.", "bearer.auth.")


def is_registrys(name: str) -> bool:
    """Whether a property in a file for Kafka's clients is one of the registry's."""
    return name.startswith(_OURS)


def registry_properties(given: Mapping[str, Given]) -> Properties:
    """Check properties as they were given; raises ConfigError that names the place and the repair."""
    bare = {name.removeprefix(PREFIX): each for name, each in given.items()}
    found = checked(without_java_names(bare), KNOWN, ALIASES)
    if USER_INFO in found and "bearer.auth.token" in found:
        raise ConfigError(f"{found['bearer.auth.token'].where}: {USER_INFO} is given as well; leave one of them out")
    if "ssl.key.location" in found and "ssl.certificate.location" not in found:
        raise ConfigError(f"{found['ssl.key.location'].where}: needs its certificate; write ssl.certificate.location")
    return Properties.of(found)


@dataclass(frozen=True, slots=True)
class RegistryEndpoint:
    """
    A registry by its URL, or the URLs of its nodes with commas between, and the properties to ask it with.

    It holds secrets: what it shows of itself, and what `str` gives, is the URL alone.
    """

    url: str
    properties: Properties = NO_PROPERTIES

    def __str__(self) -> str:
        return self.url

    def client(self) -> "RegistryClient":
        """Return a client, for a `with`; raises ConfigError for a certificate or key that cannot be read."""
        from fluvial.registry.client import RegistryClient

        return RegistryClient(self.url, properties=self.properties)

    def confluent(self) -> dict[str, Any]:
        """Return the configuration of confluent-kafka's `SchemaRegistryClient`."""
        values = self.properties.as_dict()
        values.pop("basic.auth.credentials.source", None)
        if "bearer.auth.token" in values:
            values.setdefault("bearer.auth.credentials.source", "STATIC_TOKEN")
        return {"url": self.url, **values}


def without_users(urls: str, properties: Properties) -> tuple[str, Properties]:
    """Take the name and password out of URLs, which are shown, into the properties, which are not."""
    bare, users = [], []
    for url in map(str.strip, urls.split(",")):
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        bare.append(urlunsplit(parts._replace(netloc=host)) if at else url)
        if at:
            name, _, password = user.partition(":")
            users.append(f"{unquote(name)}:{unquote(password)}")
    if users and properties.get(USER_INFO) is None:
        given = {name: Given(value, properties.where(name)) for name, value in properties.pairs}
        properties = Properties.of({**given, USER_INFO: Given(users[0], "the registry's URL")})
    return ",".join(bare), properties
