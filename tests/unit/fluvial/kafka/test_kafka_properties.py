"""Client properties in the names of librdkafka and of Java's clients, and what is said of those that will not do."""

from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from fluvial.errors import ConfigError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.client_properties import KNOWN as KAFKA
from fluvial.kafka.client_properties import kafka_properties
from fluvial.properties import Given, parse_properties
from fluvial.registry.endpoint import KNOWN as REGISTRY

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanisms": "SCRAM-SHA-512",
    "sasl.username": "ada",
    "sasl.password": "lovelace",
}

VALUES = {
    "security.protocol": "SSL",
    "sasl.oauthbearer.method": "oidc",
    "ssl.endpoint.identification.algorithm": "https",
    "enable.ssl.certificate.verification": "true",
    "client.dns.lookup": "use_all_dns_ips",
    "socket.connection.setup.timeout.ms": "1000",
}
"""Values for properties that a 1 will not do for."""


def cluster(**properties: str) -> KafkaCluster:
    return KafkaCluster.with_properties("kafka:9093", **properties)


def test_without_properties_it_is_the_address_alone() -> None:
    assert cluster().spark_options() == {"kafka.bootstrap.servers": "kafka:9093"}
    conf = cluster().client(**{"group.id": "readers"})
    assert {name for name in conf if name != "logger"} == {"bootstrap.servers", "client.id", "group.id"}


def test_a_sign_in_by_password_goes_to_both_clients() -> None:
    conf = cluster(**SCRAM).client()
    assert {name: conf[name] for name in conf if name.startswith(("s", "b"))} == {
        "bootstrap.servers": "kafka:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": "lovelace",
    }
    assert cluster(**SCRAM).spark_options() == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{SCRAM_MODULE} required username="ada" password="lovelace";',
    }


@pytest.mark.parametrize("password", ["simple", 'a "quoted" one', "back\\slash", "semi;colon'", "  blanks  ", "wörd="])
def test_a_password_stays_what_it_is_through_jaas_and_back(password: str) -> None:
    options = cluster(**{**SCRAM, "sasl.mechanisms": "PLAIN", "sasl.password": password}).spark_options()
    config = options["kafka.sasl.jaas.config"]
    assert config.startswith(f"{PLAIN_MODULE} required username=")
    again = cluster(**{"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": config})
    assert again.properties.get("sasl.password") == password
    assert again.properties.get("sasl.username") == "ada"


def test_oidc_goes_to_both_clients() -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.token.endpoint.url": "https://id.example/token",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    conf = cluster(**properties).client()
    assert conf["sasl.oauthbearer.method"] == "oidc"
    AdminClient(conf)  # librdkafka knows every name
    options = cluster(**properties).spark_options()
    assert options["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://id.example/token"
    assert options["kafka.sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="me" clientSecret="hush" scope="kafka" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2";'
    )
    javas = {name.removeprefix("kafka."): value for name, value in options.items() if "bootstrap" not in name}
    assert cluster(**javas).spark_options() == options


def test_certificates_go_to_java_as_text(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    (tmp_path / "me.pem").write_text(CERTIFICATE)
    (tmp_path / "me.key").write_text(f"a remark\n{KEY}\n")
    options = cluster(
        **{
            "security.protocol": "ssl",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "ssl.certificate.location": str(tmp_path / "me.pem"),
            "ssl.key.location": str(tmp_path / "me.key"),
            "ssl.endpoint.identification.algorithm": "none",
        }
    ).spark_options()
    assert options == {
        "kafka.bootstrap.servers": "kafka:9093",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": CERTIFICATE,
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": CERTIFICATE,
        "kafka.ssl.keystore.key": KEY,
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def test_javas_pem_stores_are_read(tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    store.write_text(CERTIFICATE + KEY)
    found = cluster(
        **{
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(store),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    assert dict(found.properties.pairs) == {
        "security.protocol": "SSL",
        "ssl.ca.location": str(store),
        "ssl.certificate.location": str(store),
        "ssl.key.location": str(store),
        "ssl.endpoint.identification.algorithm": "none",
    }


def test_what_clusters_hand_out_is_taken_as_it_is(tmp_path: Path) -> None:
    """The properties files that Confluent Cloud offers for librdkafka and for Java, but for the registry's lines."""
    for own in (
        "sasl.mechanisms=PLAIN\nsasl.username=KEY\nsasl.password=secret=1\n",
        f"sasl.mechanism=PLAIN\nacks=all\nclient.dns.lookup=use_all_dns_ips\n"
        f"sasl.jaas.config={PLAIN_MODULE} required username='KEY' password='secret=1';\n",
    ):
        text = f"# a comment\nsecurity.protocol=SASL_SSL\n{own}session.timeout.ms=45000\nclient.id=mine\n"
        given = {name: Given(value, name) for name, value in parse_properties(text).items()}
        properties = kafka_properties(given)
        assert properties.get("sasl.password") == "secret=1"
        found = KafkaCluster("pkc:9092", properties)
        conf = found.client(**{"client.id": "fluvial-test"})
        assert conf["client.id"] == "mine"
        assert "session.timeout.ms" not in conf
        assert found.client(**{"group.id": "g"})["session.timeout.ms"] == "45000"
        Producer(conf).flush(0)


def test_a_properties_file_is_read_as_javas() -> None:
    text = (
        "# one\n ! two\n\na=1\n b : 2 \nc 3\nlong=first \\\n    second\nempty=\n"
        "tab=\\tx\\u00e9\\\\\ntwice=1\ntwice=2\nkey\\ with\\:all=v=w\n"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2 ",
        "c": "3",
        "long": "first second",
        "empty": "",
        "tab": "\txé\\",
        "twice": "2",
        "key with:all": "v=w",
    }


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"security.protocoll": "SSL"}, r"security\.protocoll: no such property; did you mean security\.protocol\?"),
        ({"colour": "red"}, r"colour: no such property; see docs"),
        ({"security.protocol": "TLS"}, r"security\.protocol: 'TLS' will not do; write one of PLAINTEXT, SSL"),
        ({"sasl.mechanism": "GSSAPI"}, r"sasl\.mechanism: 'GSSAPI'.*OAUTHBEARER"),
        ({"group.id": "x"}, r"group\.id: each client here sets group\.id.*leave it out"),
        ({"acks": "1"}, r"acks: '1' will not do; write all"),
        ({"sasl.username": "ada"}, r"sasl\.username: has no use with security\.protocol PLAINTEXT; write SASL_SSL"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "ca"}, r"ssl\.ca\.location: has no use.*SASL_SSL"),
        ({**SCRAM, "sasl.mechanism": "PLAIN"}, r"sasl\.mechanism: says otherwise than sasl\.mechanisms"),
        ({**SCRAM, "ssl.ca.pem": "x", "ssl.ca.location": "y"}, r"ssl\.ca\.pem: ssl\.ca\.location stands at"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "x.jks"}, r"ssl\.truststore\.location.*keytool"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "x", "ssl.keystore.type": "JKS"}, r"JKS.*PKCS12"),
        ({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"}, r"sasl\.jaas\.config: only"),
        ({"sasl.login.callback.handler.class": "software.amazon.msk.Handler"}, r"handler\.class: only .*OIDC"),
        ({"enable.ssl.certificate.verification": "no"}, r"verification: 'no' will not do; write true or false"),
    ],
)
def test_what_will_not_do_is_told_with_the_repair(properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        cluster(**properties)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"security.protocol": "SASL_SSL"}, r"security\.protocol: SASL_SSL needs sasl\.mechanism"),
        (
            {name: value for name, value in SCRAM.items() if name != "sasl.password"},
            r"sasl\.mechanisms: SCRAM-SHA-512 needs sasl\.password.*FLUVIAL_KAFKA_SASL_PASSWORD",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "nowhere.pem"}, r"ssl\.ca\.location: nowhere\.pem: No such"),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "x"}, r"ssl\.certificate\.pem: needs its key"),
    ],
)
def test_what_is_lacking_is_told_when_a_client_is_made(properties: dict[str, str], says: str) -> None:
    found = cluster(**properties)
    for make in (found.client, found.spark_options):
        with pytest.raises(ConfigError, match=says):
            make()


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("-----BEGIN RSA PRIVATE KEY-----\nx\n-----END RSA PRIVATE KEY-----", r"ssl\.key\.location.*openssl pkcs8"),
        ("-----BEGIN EC PRIVATE KEY-----\nx\n-----END EC PRIVATE KEY-----", r"ssl\.key\.location.*PKCS #8"),
    ],
)
def test_a_key_that_java_cannot_read_is_told_with_the_command(tmp_path: Path, key: str, says: str) -> None:
    for name, text in (("me.pem", CERTIFICATE), ("me.key", key)):
        (tmp_path / name).write_text(text)
    paths = {"ssl.certificate.location": str(tmp_path / "me.pem"), "ssl.key.location": str(tmp_path / "me.key")}
    with pytest.raises(ConfigError, match=says):
        cluster(**{"security.protocol": "SSL"}, **paths).spark_options()


def test_only_librdkafka_trusts_blindly() -> None:
    found = cluster(**{"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"})
    assert found.client()["enable.ssl.certificate.verification"] == "false"
    with pytest.raises(ConfigError, match="always verifies"):
        found.spark_options()


def test_no_secret_is_shown() -> None:
    found = cluster(**SCRAM)
    assert "lovelace" not in f"{found} {found!r} {found.properties} {found.properties!r}"
    with pytest.raises(ConfigError) as failed:
        kafka_properties({"sasl.pasword": Given("lovelace", "fluvial.toml: kafka.sasl.pasword")})
    assert "did you mean sasl.password?" in str(failed.value)
    assert "lovelace" not in str(failed.value)
    assert "lovelace" not in repr(Given("lovelace", "here"))


@pytest.mark.parametrize("name", KAFKA)
def test_librdkafka_knows_each_property(name: str) -> None:
    with pytest.raises(KafkaException, match=r'"none\.such"'):
        AdminClient({name: VALUES.get(name, "1"), "none.such": ""})


def test_the_page_lists_what_is_known() -> None:
    page = (Path(__file__).parents[4] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert not [name for name in (*KAFKA, *REGISTRY) if f"`{name}`" not in page]


def test_two_that_mean_the_same_are_one() -> None:
    here = kafka_properties({name: Given(value, "a file") for name, value in SCRAM.items()})
    there = kafka_properties({name: Given(value, "a variable") for name, value in SCRAM.items()})
    assert {KafkaCluster("a:1", here)} == {KafkaCluster("a:1", there)}
    assert KafkaCluster("a:1", here) != KafkaCluster("a:1")
