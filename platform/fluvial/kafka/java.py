"""
Between the names of librdkafka and those of Java's clients, which Spark reads topics with.

Certificates and keys go to Java as text and not as paths: executors on other machines then need no files.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from fluvial.errors import ConfigError
from fluvial.properties import Given, Properties

_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH_HANDLERS = {f"{_OAUTH}.OAuthBearerLoginCallbackHandler", f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler"}

_JAAS = re.compile(
    r"\s*(?P<module>[\w.]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*", re.DOTALL
)
_OPTION = re.compile(
    r"""(?P<name>\w+)\s*=\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<bare>[^\s;]+))"""
)

# Names that both know, with the same meaning and values.
_SAME = frozenset(
    {
        *("security.protocol", "sasl.mechanism", "client.id", "client.rack", "client.dns.lookup"),
        *("connections.max.idle.ms", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms"),
        *("session.timeout.ms", "socket.connection.setup.timeout.ms", "sasl.oauthbearer.token.endpoint.url"),
    }
)


def to_java(properties: Properties) -> dict[str, str]:
    """
    Return checked properties under the names of Java's clients.

    Raises ConfigError for what only librdkafka can do, and for a file that cannot be read.
    """
    values = properties.as_dict()
    java = {name: value for name, value in values.items() if name in _SAME}
    protocol = values.get("security.protocol", "PLAINTEXT")
    if protocol.startswith("SASL"):
        java |= _sasl(values)
    if protocol.endswith("SSL"):
        java |= _ssl(properties)
    return java


def _sasl(values: Mapping[str, str]) -> dict[str, str]:
    mechanism = values["sasl.mechanism"]
    if mechanism != "OAUTHBEARER":
        module = _PLAIN if mechanism == "PLAIN" else _SCRAM
        options = {"username": values["sasl.username"], "password": values["sasl.password"]}
        return {"sasl.jaas.config": _jaas(module, options)}
    options = {
        "clientId": values["sasl.oauthbearer.client.id"],
        "clientSecret": values["sasl.oauthbearer.client.secret"],
    }
    if "sasl.oauthbearer.scope" in values:
        options["scope"] = values["sasl.oauthbearer.scope"]
    for each in filter(None, values.get("sasl.oauthbearer.extensions", "").split(",")):
        name, _, value = each.partition("=")
        options[f"extension_{name.strip()}"] = value.strip()
    return {
        "sasl.jaas.config": _jaas(f"{_OAUTH}.OAuthBearerLoginModule", options),
        "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
    }


def _jaas(module: str, options: Mapping[str, str]) -> str:
    quoted = (f'{name}="{_escaped(value)}"' for name, value in options.items())
    return f"{module} required {' '.join(quoted)};"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _ssl(properties: Properties) -> dict[str, str]:
    values = properties.as_dict()
    if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise ConfigError(
            f"{properties.where('enable.ssl.certificate.verification')}: Spark's Kafka client always verifies whom it "
            "talks to; leave it out, and name the CA's PEM file in ssl.ca.location"
        )
    java: dict[str, str] = {}
    trusted = pem_text(properties, "ssl.ca")
    if trusted is not None:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if "ssl.keystore.location" in values:
        java |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(Path(values["ssl.keystore.location"]).expanduser()),
        }
        if "ssl.keystore.password" in values:
            java["ssl.keystore.password"] = values["ssl.keystore.password"]
    chain, key = pem_text(properties, "ssl.certificate"), pem_text(properties, "ssl.key")
    if chain is not None and key is not None:
        java |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": chain,
            "ssl.keystore.key": _pkcs8(properties, key),
        }
        if "ENCRYPTED PRIVATE KEY" in key and "ssl.key.password" in values:
            java["ssl.key.password"] = values["ssl.key.password"]
    algorithm = values.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm.lower() == "none" else algorithm.lower()
    return java


def pem_text(properties: Properties, name: str) -> str | None:
    """
    Return the text of `<name>.pem`, or of the file at `<name>.location`; None where neither was given.

    Raises ConfigError for a file that cannot be read, or holds no text.
    """
    text, location = properties.get(f"{name}.pem"), properties.get(f"{name}.location")
    if text is not None or location is None or location == "probe":
        return text
    where = properties.where(f"{name}.location")
    try:
        return Path(location).expanduser().read_text(encoding="ascii")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: {location}: not PEM text; convert it with openssl") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{where}: {location}: Spark's Kafka client takes one file, not a folder of them") from error
    except OSError as error:
        raise ConfigError(f"{where}: {location}: {error.strerror}") from error


def _pkcs8(properties: Properties, key: str) -> str:
    """The private key out of PEM text, which Java reads in PKCS #8 alone."""
    found = re.search(
        r"-----BEGIN (ENCRYPTED )?PRIVATE KEY-----.*?-----END (ENCRYPTED )?PRIVATE KEY-----", key, re.DOTALL
    )
    if found is None:
        name = "ssl.key.location" if properties.get("ssl.key.pem") is None else "ssl.key.pem"
        raise ConfigError(
            f"{properties.where(name)}: Spark's Kafka client reads keys in PKCS #8 alone; convert this one with "
            "`openssl pkcs8 -topk8 -nocrypt -in OLD -out NEW`"
        )
    return found[0]


def without_java_names(given: Mapping[str, Given]) -> dict[str, Given]:
    """
    Return what was given with the names that only Java's clients have turned into librdkafka's.

    Raises ConfigError for what librdkafka cannot do: JKS files, and modules and handlers of one's own.
    """
    left = dict(given)
    _take_login(left)
    _take_truststore(left)
    _take_keystore(left)
    algorithm = left.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None and not algorithm.value.strip():
        left["ssl.endpoint.identification.algorithm"] = Given("none", algorithm.where)
    return left


def _take_login(left: dict[str, Given]) -> None:
    handler = left.pop("sasl.login.callback.handler.class", None)
    if handler is not None and handler.value not in _OAUTH_HANDLERS:
        raise ConfigError(
            f"{handler.where}: only {sorted(_OAUTH_HANDLERS)[0]} is known; sign in by a password, or OIDC"
        )
    jaas = left.pop("sasl.jaas.config", None)
    if jaas is None:
        return
    match = _JAAS.fullmatch(jaas.value)
    names = None if match is None else _JAAS_OPTIONS.get(match["module"].rpartition(".")[2])
    if match is None or names is None:
        raise ConfigError(
            f"{jaas.where}: only {', '.join(_JAAS_OPTIONS)} are known; write sasl.username and sasl.password instead"
        )
    extensions = []
    for each in _OPTION.finditer(match["options"]):
        bare = each["bare"]
        value = bare if bare is not None else re.sub(r"\\(.)", r"\1", each["double"] or each["single"] or "")
        if each["name"].startswith("extension_"):
            extensions.append(f"{each['name'].removeprefix('extension_')}={value}")
        elif each["name"] in names:
            left.setdefault(names[each["name"]], Given(value, jaas.where))
    if extensions:
        left.setdefault("sasl.oauthbearer.extensions", Given(",".join(extensions), jaas.where))


_JAAS_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
    "OAuthBearerLoginModule": {
        "clientId": "sasl.oauthbearer.client.id",
        "clientSecret": "sasl.oauthbearer.client.secret",
        "scope": "sasl.oauthbearer.scope",
    },
}


def _take_truststore(left: dict[str, Given]) -> None:
    kind = left.pop("ssl.truststore.type", None)
    location, certificates = left.pop("ssl.truststore.location", None), left.pop("ssl.truststore.certificates", None)
    left.pop("ssl.truststore.password", None)
    if location is not None:
        if kind is None or kind.value.upper() != "PEM":
            raise ConfigError(
                f"{location.where}: a truststore of Java's own cannot be read here; write its certificates to a PEM "
                "file (`keytool -list -rfc -keystore FILE`), and name that in ssl.ca.location"
            )
        left.setdefault("ssl.ca.location", location)
    if certificates is not None:
        left.setdefault("ssl.ca.pem", certificates)


def _take_keystore(left: dict[str, Given]) -> None:
    kind = left.pop("ssl.keystore.type", None)
    chain, key = left.pop("ssl.keystore.certificate.chain", None), left.pop("ssl.keystore.key", None)
    if chain is not None:
        left.setdefault("ssl.certificate.pem", chain)
    if key is not None:
        left.setdefault("ssl.key.pem", key)
    location = left.get("ssl.keystore.location")
    if kind is None or location is None:
        return
    match kind.value.upper():
        case "PEM":
            del left["ssl.keystore.location"]
            left.setdefault("ssl.certificate.location", location)
            left.setdefault("ssl.key.location", location)
        case "PKCS12":
            pass
        case _:
            raise ConfigError(
                f"{kind.where}: a {kind.value} keystore cannot be read here; convert it with `keytool -importkeystore "
                "-srckeystore OLD -destkeystore NEW -deststoretype PKCS12`, and write PKCS12"
            )
