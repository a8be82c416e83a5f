"""The security checklist: what is planted in settings, certificates or modes is found; a sound cluster has nothing."""

import os
from pathlib import Path

import pytest
from certificates import Authority

import log_broker
from fluvial.cli.cluster.security_facts import security_facts
from fluvial.cluster.doctor import Severity
from fluvial.cluster.picture import picture_of
from fluvial.cluster.security_doctor import FileFacts, SecurityFacts, examine_security
from fluvial.cluster.wire import ClusterLink
from fluvial.config import Settings, load_settings
from fluvial.kafka import KafkaCluster
from fluvial.local.state import Platform

SOUND = {
    "listeners": "INTERNAL://127.0.0.1:9094,OUTSIDE://0.0.0.0:9092",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_SSL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "authorizer.class.name": "fluvial",
    "super.users": "User:node",
}
PLANTED = {
    "open listener": {"listeners": "INTERNAL://10.0.0.1:9094,OUTSIDE://0.0.0.0:9092"},
    "password in clear": {
        "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
    },
    "records in clear": {"listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"},
    "no rights": {"authorizer.class.name": ""},
    "open without ACL": {"allow.everyone.if.no.acl.found": "true"},
    "anonymous super user": {"super.users": "User:node; User:ANONYMOUS"},
}


def rules(facts: SecurityFacts) -> set[str]:
    found = examine_security(facts)
    assert all(each.repair and each.about and each.text for each in found)
    return {each.rule for each in found}


def test_a_sound_cluster_has_no_findings() -> None:
    assert rules(SecurityFacts(settings={0: SOUND, 1: SOUND}, certificate_days={"b:9092": 31.0})) == set()


@pytest.mark.parametrize("rule", PLANTED)
def test_a_setting_that_lets_others_in_is_found(rule: str) -> None:
    settings = {**SOUND, **PLANTED[rule]}
    assert rules(SecurityFacts(settings={0: settings, 1: settings})) == {rule}


def test_tls_that_asks_for_no_certificate_lets_everybody_in() -> None:
    settings = {**SOUND, "listeners": "OUT://10.0.0.1:9092", "listener.security.protocol.map": "OUT:SSL"}
    assert rules(SecurityFacts(settings={0: settings})) == {"open listener"}
    required = {**settings, "listener.name.out.ssl.client.auth": "required"}
    assert rules(SecurityFacts(settings={0: required})) == set()


def test_a_plain_broker_of_this_machine_alone_is_no_finding() -> None:
    assert rules(SecurityFacts(settings={0: {"listeners": "PLAINTEXT://127.0.0.1:9092"}})) == set()


def test_brokers_that_differ_and_certificates_and_files() -> None:
    other = {**SOUND, "super.users": "User:node;User:ada"}
    assert rules(SecurityFacts(settings={0: SOUND, 1: other})) == {"brokers differ"}
    found = examine_security(SecurityFacts(certificate_days={"a:1": 29.0, "b:1": 0.0, "c:1": 300.0}))
    assert [each.about for each in found] == ["a:1", "b:1"]
    assert "has expired" in found[1].text
    (key,) = examine_security(SecurityFacts(files=(FileFacts(path="k", mode=0o640), FileFacts(path="l", mode=0o600))))
    assert (key.rule, key.about, key.severity) == ("file mode", "k", Severity.EXPOSES)
    assert "0640" in key.text


def test_what_is_planted_in_a_broker_and_on_this_machine_is_read(tmp_path: Path) -> None:
    (tmp_path / "authority").mkdir()
    authority = Authority(tmp_path / "authority")
    config = {
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "none",
        "ssl.keystore.location": str(authority.issue("node")),
        "ssl.truststore.location": str(authority.path),
        "authorizer.class.name": "fluvial",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }
    key = authority.issue("client")
    os.chmod(key, 0o644)
    client = tmp_path / "client.properties"
    client.write_text(
        f"security.protocol=SSL\nssl.ca.location={authority.path}\n"
        f"ssl.certificate.location={key}\nssl.key.location={key}\n"
    )
    with log_broker.embedded(config=config) as broker:
        settings = load_settings(
            environ={}, directory=tmp_path, bootstrap_servers=broker.bootstrap_servers, command_config=str(client)
        )
        with ClusterLink(settings.cluster) as link:
            found = examine_security(security_facts(settings, link, picture_of(link)))
    assert {(each.rule, each.about) for each in found} >= {
        ("open without ACL", "broker 0"),
        ("anonymous super user", "broker 0"),
        ("certificate", broker.bootstrap_servers),
        ("file mode", str(key)),
    }


def test_folders_of_the_local_platform_are_looked_at(tmp_path: Path) -> None:
    from fluvial.cli.cluster.security_facts import file_facts

    data = tmp_path / "data"
    (data / "node-0").mkdir(parents=True)
    (data / "security").mkdir()
    (data / "security" / "server.properties").touch()
    Platform.planned(brokers=1, port=1, registry_port=2).save(data)
    for path, mode in ((data, 0o700), (data / "node-0", 0o755), (data / "security", 0o700)):
        path.chmod(mode)
    (data / "security" / "server.properties").chmod(0o604)
    settings = load_settings(environ={}, directory=tmp_path, data_dir=str(data))
    found = examine_security(SecurityFacts(files=tuple(file_facts(settings))))
    assert {each.about for each in found} == {str(data / "node-0"), str(data / "security" / "server.properties")}


def test_users_with_passwords_that_are_tried_first_are_found() -> None:
    passwords = {"alice": "alice-secret", "bob": "changeit", "cleo": "cleo", "dan": "Vr9-tIq2_kS"}
    settings = {
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": 'x required username="node" password="between" '
        + " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
        + ";",
        "super.users": ";".join(f"User:{name}" for name in ("node", *passwords)),
        "connection.failed.authentication.delay.ms": "0",
    }
    with log_broker.embedded(config=settings) as broker:
        kafka = KafkaCluster.with_properties(
            broker.bootstrap_servers,
            **{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"},
            **{"sasl.username": "dan", "sasl.password": passwords["dan"]},
        )
        told = Settings(bootstrap_servers=broker.bootstrap_servers, kafka_properties=kafka.properties, local=False)
        with ClusterLink(kafka) as link:
            facts = security_facts(told, link, picture_of(link), try_passwords=True)
            assert security_facts(told, link, picture_of(link)).known_passwords == ()
    assert facts.known_passwords == ("alice", "bob", "cleo")
    found = [each for each in examine_security(facts) if each.rule == "known password"]
    assert [each.about for each in found] == ["user alice", "user bob", "user cleo"]
    assert not any(password in str(each) for each in found for password in ("alice-secret", "changeit"))
