"""One broker with five listeners, and the clients of others at each of them."""

import os
import select
import socket
import ssl
import struct
import threading
import time
import warnings

import pytest
from certificates import Authority
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from log_broker.core.security.credentials import ScramMechanism
from log_broker.core.security.scram import ScramClient, credential_of
from log_broker.server.embedded import run_embedded
from log_broker.wire.apis import ApiKey
from log_broker.wire.control import read_response, write_request

PASSWORDS = {"alice": b"wonder=land,", "bob": b"builder"}
CREDENTIALS = {
    (name, mechanism): credential_of(password, b"salt of " + name.encode(), 4096, mechanism)
    for name, password in PASSWORDS.items()
    for mechanism in ScramMechanism
}


class Known:
    def scram(self, name, mechanism):
        return CREDENTIALS.get((name, mechanism))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority, tmp_path_factory):
    authority.issue("broker")
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,"
        "SHORT://127.0.0.1:0",
        "listener.security.protocol.map": "SHORT:SASL_PLAINTEXT",
        "ssl.keystore.location": authority.folder / "broker.pem",
        "ssl.truststore.location": authority.path,
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=([a-z]+),C=DE$/$1/",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.short.connections.max.reauth.ms": 3000,
        "listener.name.short.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
        "sasl.jaas.config": 'x required username="node" password="between";',
        "connection.failed.authentication.delay.ms": 10,
    }
    with run_embedded(
        data_dir=None, port=0, validator=None, topics={"t": 1}, settings=settings, known_users=Known()
    ) as broker:
        yield broker


def port_of(broker, listener):
    return next(each.port for each in broker.node.listeners if each.name == listener)


def client_settings(broker, authority, listener, mechanism="SCRAM-SHA-256", user="alice"):
    settings = {
        "bootstrap.servers": f"127.0.0.1:{port_of(broker, listener)}",
        "security.protocol": listener if listener != "SHORT" else "SASL_PLAINTEXT",
        "socket.timeout.ms": 10000,
        "log_level": 0,
    }
    if "SSL" in listener:
        settings["ssl.ca.location"] = str(authority.path)
    if listener == "SSL":
        path = str(authority.issue(user))
        settings |= {"ssl.certificate.location": path, "ssl.key.location": path}
    if "SASL" in settings["security.protocol"]:
        settings |= {
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user].decode(),
        }
    return settings


def principals(broker, listener):
    return {str(each.principal) for each in list(broker.node.connections) if each.listener == listener}


WAYS = [("PLAINTEXT", ""), ("SSL", "")] + [
    (listener, mechanism)
    for listener in ("SASL_PLAINTEXT", "SASL_SSL")
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
]


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_librdkafka_produces_and_consumes(broker, authority, listener, mechanism):
    settings = client_settings(broker, authority, listener, mechanism)
    producer = Producer(settings)
    sent = f"{listener} {mechanism}".encode()
    producer.produce("t", sent)
    assert producer.flush(20) == 0
    consumer = Consumer({**settings, "group.id": f"{listener}{mechanism}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    seen = set()
    deadline = time.monotonic() + 30
    while sent not in seen and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            seen.add(message.value())
    assert sent in seen
    assert principals(broker, listener) == {"User:ANONYMOUS" if listener == "PLAINTEXT" else "User:alice"}
    # Whatever it was told of is the listener that it came by.
    told = {each.port for each in AdminClient(settings).list_topics(timeout=10).brokers.values()}
    assert told == {port_of(broker, listener)}
    consumer.close()


@pytest.mark.parametrize(("listener", "mechanism"), [each for each in WAYS if each[1]])
def test_kafka_python_signs_in(broker, authority, listener, mechanism):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka import KafkaAdminClient

        client = KafkaAdminClient(
            bootstrap_servers=f"127.0.0.1:{port_of(broker, listener)}",
            security_protocol=listener,
            sasl_mechanism=mechanism,
            sasl_plain_username="bob",
            sasl_plain_password=PASSWORDS["bob"].decode(),
            ssl_cafile=str(authority.path),
        )
        assert "t" in client.list_topics()
        client.close()


async def test_aiokafka_signs_in(broker, authority):
    from aiokafka import AIOKafkaProducer

    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        producer = AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{port_of(broker, 'SASL_SSL')}",
            security_protocol="SASL_SSL",
            sasl_mechanism=mechanism,
            sasl_plain_username="bob",
            sasl_plain_password=PASSWORDS["bob"].decode(),
            ssl_context=ssl.create_default_context(cafile=str(authority.path)),
        )
        await producer.start()
        assert (await producer.send_and_wait("t", b"x")).offset >= 0
        await producer.stop()


@pytest.mark.parametrize("change", [{"sasl.password": "wrong"}, {"sasl.username": "nobody"}])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_who_has_no_password_is_told_so(broker, authority, mechanism, change):
    settings = {**client_settings(broker, authority, "SASL_PLAINTEXT", mechanism), **change}
    errors = []
    client = AdminClient({**settings, "error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(0)
    assert KafkaError._AUTHENTICATION in {each.code() for each in errors}


def test_a_client_without_a_certificate_is_not_let_in(broker, authority, tmp_path):
    settings = client_settings(broker, authority, "SSL")
    for name in ("ssl.certificate.location", "ssl.key.location"):
        del settings[name]
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=2)
    path = str(Authority(tmp_path).issue("alice"))
    with pytest.raises(KafkaException):
        AdminClient({**settings, "ssl.certificate.location": path, "ssl.key.location": path}).list_topics(timeout=2)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("has_certificate", [False, True])
def test_who_is_not_let_in_is_told_so_by_an_alert(broker, authority, tmp_path, has_certificate, version):
    context = context_of(authority)
    context.minimum_version = context.maximum_version = version
    if has_certificate:
        context.load_cert_chain(Authority(tmp_path).issue("alice"))
    with (
        socket.create_connection(("127.0.0.1", port_of(broker, "SSL")), timeout=20) as plain,
        pytest.raises(ssl.SSLError, match=r"ALERT|alert"),
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.recv(1)


def test_the_alert_reaches_a_client_that_has_sent_its_requests_already(broker, authority, tmp_path):
    context = context_of(authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # By which a client is through before it is looked at.
    context.load_cert_chain(Authority(tmp_path).issue("alice"))
    with (
        socket.create_connection(("127.0.0.1", port_of(broker, "SSL")), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        select.select([encrypted], [], [], 20)
        for _ in range(10):
            encrypted.sendall(b"a request")
            time.sleep(0.01)
        with pytest.raises(ssl.SSLError, match="ALERT"):
            encrypted.recv(1)


class Raw:
    """One connection that speaks frames."""

    def __init__(self, port, context=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def send(self, frame):
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def frame(self):
        """The next frame, None where the connection has ended."""
        data = b""
        try:
            while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
                got = self.socket.recv(65536)
                if not got:
                    return None
                data += got
        except ConnectionError:
            return None
        return data[4:]

    def ask(self, api, version, **values):
        self.send(write_request(api, version, 7, "raw", values))
        frame = self.frame()
        return None if frame is None else read_response(api, version, memoryview(frame)[4:])

    def handshake(self, mechanism, version=1):
        return self.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)

    def token(self, data, version=2):
        return self.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=data)

    def sign_in(self, user="alice", version=2):
        assert self.handshake("PLAIN").error_code == 0
        return self.token(b"\0" + user.encode() + b"\0" + PASSWORDS[user], version)

    def close(self):
        self.socket.close()


@pytest.fixture
def raw(broker):
    opened = []

    def connect(listener="SASL_PLAINTEXT"):
        opened.append(Raw(port_of(broker, listener)))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def metadata():
    topics = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return write_request(ApiKey.METADATA, 12, 9, "raw", topics)


def test_nothing_but_versions_is_answered_before_sign_in(raw):
    client = raw()
    for version in (0, 3):
        values = {"client_software_name": "x", "client_software_version": "1"} if version else {}
        answer = client.ask(ApiKey.API_VERSIONS, version, **values)
        assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= {each.api_key for each in answer.api_keys}
    client.send(metadata())
    assert client.frame() is None


def test_another_request_within_a_sign_in_is_an_illegal_state(raw):
    client = raw()
    client.handshake("PLAIN")
    client.send(metadata())
    answer = read_response(ApiKey.METADATA, 12, memoryview(client.frame())[4:])
    assert answer.topics == ()
    assert client.frame() is None


def test_an_unknown_mechanism_is_told_those_that_there_are(raw):
    client = raw()
    answer = client.handshake("GSSAPI")
    assert (answer.error_code, set(answer.mechanisms)) == (33, {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
    assert client.frame() is None


def test_a_refusal_has_one_text(raw):
    texts = set()
    for user, password in ((b"alice", b"wrong"), (b"nobody", b"wrong")):
        client = raw()
        client.handshake("PLAIN")
        answer = client.token(b"\0" + user + b"\0" + password)
        assert answer.error_code == 58
        texts.add(answer.error_message)
        assert client.frame() is None
    assert len(texts) == 1


def test_tokens_without_requests_follow_the_first_version_of_the_handshake(raw):
    client = raw()
    client.handshake("SCRAM-SHA-256", version=0)
    scram = ScramClient(ScramMechanism.SHA_256, "bob", PASSWORDS["bob"], nonce="abc")
    client.send(scram.first())
    client.send(scram.final(client.frame()))
    scram.verify(client.frame())
    client.send(metadata())
    assert client.frame() is not None
    refused = raw()
    refused.handshake("PLAIN", version=0)
    refused.send(b"\0bob\0wrong")
    assert refused.frame() is None


def test_what_was_sent_along_with_the_last_message_is_answered(raw):
    client = raw()
    client.handshake("PLAIN")
    last = write_request(ApiKey.SASL_AUTHENTICATE, 2, 7, "raw", {"auth_bytes": b"\0bob\0" + PASSWORDS["bob"]})
    frames = [bytes(last), bytes(metadata()), bytes(metadata())]
    client.socket.sendall(b"".join(struct.pack(">i", len(each)) + each for each in frames))
    received = b""
    while received.count(struct.pack(">i", 9)) < 2:  # the correlation id of both
        received += client.socket.recv(65536)


def test_where_sign_ins_last_for_ever_none_is_repeated(raw):
    client = raw()
    assert client.sign_in().session_lifetime == 0
    assert client.handshake("PLAIN").error_code == 34
    assert client.token(b"x").error_code == 34
    plain = raw("PLAINTEXT")
    assert plain.handshake("PLAIN").error_code == 34
    assert plain.token(b"x").error_code == 34
    plain.send(metadata())
    assert plain.frame() is not None


def test_signing_in_again_and_the_end_of_who_does_not(raw, broker):
    client, silent, old = raw("SHORT"), raw("SHORT"), raw("SHORT")
    assert client.sign_in().session_lifetime == 3000
    silent.sign_in()
    assert old.sign_in(version=0) is not None
    client.sign_in()  # the first repetition may come at once
    assert client.handshake("PLAIN").error_code == 34  # and the next one a second later
    deadline = time.monotonic() + 3.2
    while time.monotonic() < deadline:
        time.sleep(1.1)
        assert client.sign_in().session_lifetime == 3000
    for each, is_in in ((client, True), (silent, False), (old, True)):
        each.send(metadata())
        assert (each.frame() is not None) is is_in


def test_nobody_becomes_another_by_signing_in_again(raw):
    client = raw("SHORT")
    client.sign_in()
    answer = client.sign_in("bob")
    assert answer.error_code == 58
    assert client.frame() is None
    other = raw("SHORT")
    other.sign_in()
    other.handshake("SCRAM-SHA-256")
    assert other.token(b"n,,n=alice,r=abc").error_code == 58


def test_a_stranger_costs_no_more_than_he_sent(raw, broker):
    client = raw()
    client.socket.sendall(struct.pack(">i", 600_000))
    assert client.frame() is None
    many = raw()
    request = write_request(ApiKey.API_VERSIONS, 0, 7, "raw", {})
    many.socket.sendall((struct.pack(">i", len(request)) + bytes(request)) * 100)
    answered = 0
    while many.frame() is not None:
        answered += 1
    assert answered <= 16


def context_of(authority):
    return ssl.create_default_context(cafile=str(authority.path))


def served_number(broker, authority):
    """The number of the certificate that is shown to who signs in now."""
    client = Raw(port_of(broker, "SASL_SSL"), context_of(authority))
    number = client.socket.getpeercert()["serialNumber"]
    try:
        assert client.sign_in().error_code == 0
        client.send(metadata())
        assert client.frame() is not None
    finally:
        client.close()
    return number


def test_a_certificate_that_is_replaced_is_shown_to_the_next_client(broker, authority):
    before = served_number(broker, authority)
    first = Raw(port_of(broker, "SASL_SSL"), context_of(authority))
    first.sign_in()
    (authority.folder / "broker.pem").write_text("this is none")
    time.sleep(1.1)
    assert served_number(broker, authority) == before
    authority.issue("broker")
    deadline = time.monotonic() + 20
    while served_number(broker, authority) == before:
        assert time.monotonic() < deadline
        time.sleep(0.3)
    first.send(metadata())  # who is connected stays so
    assert first.frame() is not None
    first.close()


def test_handshakes_leave_nothing_behind(broker, authority):
    descriptors = len(os.listdir("/proc/self/fd"))
    context = context_of(authority)
    for number in range(60):
        with socket.create_connection(("127.0.0.1", port_of(broker, "SASL_SSL"))) as plain:
            if number % 3 == 0:
                plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            elif number % 3 == 1:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
    deadline = time.monotonic() + 20
    while len(os.listdir("/proc/self/fd")) > descriptors + 2:
        assert time.monotonic() < deadline, "descriptors are left"
        time.sleep(0.1)


def test_who_stalls_keeps_nobody_out(broker, authority):
    stalled = [socket.create_connection(("127.0.0.1", port_of(broker, "SASL_SSL"))) for _ in range(50)]
    done = threading.Event()

    def come():
        served_number(broker, authority)
        done.set()

    threading.Thread(target=come, daemon=True).start()
    assert done.wait(20)
    for each in stalled:
        each.close()


def test_the_settings_of_a_broker_are_shown_without_secrets(broker, authority):
    client = AdminClient(client_settings(broker, authority, "PLAINTEXT"))
    resource = ConfigResource(ConfigResource.Type.BROKER, "0")
    shown = client.describe_configs([resource])[resource].result(10)
    assert shown["listeners"].value.count(f"SASL_SSL://127.0.0.1:{port_of(broker, 'SASL_SSL')}") == 1
    assert shown["sasl.enabled.mechanisms"].value == "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
    secret = shown["sasl.jaas.config"]
    assert (secret.value, secret.is_sensitive, secret.is_read_only) == (None, True, True)
    change = ConfigResource(
        ConfigResource.Type.BROKER,
        "0",
        incremental_configs=[ConfigEntry("ssl.client.auth", "none", incremental_operation=AlterConfigOpType.SET)],
    )
    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        client.incremental_alter_configs([change])[change].result(10)
