"""The pytest plugin in projects of users, each run as a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CLIENT = """
    from confluent_kafka import Consumer, Producer

    def send(broker, topic, *values):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for value in values:
            producer.produce(topic, value=value)
        assert producer.flush(30) == 0
        return producer.list_topics(timeout=30).topics

    def receive(broker, topic, count):
        consumer = Consumer({
            "bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest",
            "log_level": 0,
        })
        consumer.subscribe([topic])
        values = []
        for _ in range(300):
            values += [message.value().decode() for message in consumer.consume(count, 0.1)]
            if len(values) >= count:
                break
        consumer.close()
        return values
"""


WORDS = ("-p", "log_broker.pytest_plugin", "-p", "no:randomly", "-p", "no:cacheprovider", "--strict-markers")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(clients=CLIENT)
    pytester.syspathinsert()
    return pytester


def test_a_project_tests_against_brokers_of_each_kind(project: pytest.Pytester) -> None:
    project.makeini(
        """
        [pytest]
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        kafka_broker_settings =
            num.partitions = 2
            auto.create.topics.enable=true
        kafka_broker_topics =
            everywhere
            wide: 7
        """
    )
    project.makepyfile(
        """
        import pytest
        from clients import receive, send

        pytestmark = pytest.mark.kafka_broker(topics={"of-the-module": 3}, message_max_bytes=2000)
        seen = []

        def test_records_come_back(kafka_broker):
            send(kafka_broker, "orders", "a", "b")
            assert sorted(receive(kafka_broker, "orders", 2)) == ["a", "b"]
            seen.append(kafka_broker)

        def test_another_test_has_another_broker(kafka_broker):
            assert "orders" not in send(kafka_broker, "everywhere")
            assert kafka_broker.node.cluster_id != seen[0].node.cluster_id
            assert not seen[0].data_dir.exists()

        def test_topics_and_settings_of_ini_and_module_hold(kafka_broker):
            topics = send(kafka_broker, "everywhere")
            found = {name: len(topic.partitions) for name, topic in topics.items()}
            assert found == {"everywhere": 2, "wide": 7, "of-the-module": 3}
            assert kafka_broker.node.config.topic_defaults["max.message.bytes"] == "2000"

        @pytest.mark.kafka_broker(topics=["of-the-test"], num_partitions=5, config={"log.retention.ms": 77})
        def test_the_closest_marker_has_the_last_word(kafka_broker):
            topics = send(kafka_broker, "of-the-test")
            assert set(topics) == {"everywhere", "wide", "of-the-test"}
            assert len(topics["of-the-test"].partitions) == 5
            assert kafka_broker.node.config.topic_defaults["retention.ms"] == "77"
            assert kafka_broker.node.config.topic_defaults["max.message.bytes"] == "2000"

        @pytest.mark.parametrize("number", [1, 2])
        def test_the_shared_broker_keeps_tests_apart_by_topic(kafka_session_broker, number):
            topic = kafka_session_broker.unique_topic("mine", partitions=1)
            send(kafka_session_broker, topic, str(number))
            assert receive(kafka_session_broker, topic, 1) == [str(number)]
            assert "of-the-module" not in send(kafka_session_broker, topic)

        def test_a_test_has_as_many_as_it_wants(make_kafka_broker, tmp_path):
            one, two = make_kafka_broker(topics=["x"], num_partitions=1), make_kafka_broker(data_dir=tmp_path / "d")
            send(one, "x", "only in one")
            assert receive(one, "x", 1) == ["only in one"]
            assert "x" not in send(two, "everywhere")
            assert (tmp_path / "d").exists()

        async def test_in_a_loop(kafka_broker):
            from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

            producer = AIOKafkaProducer(bootstrap_servers=kafka_broker.bootstrap_servers)
            await producer.start()
            await producer.send_and_wait("wide", b"v", partition=6)
            await producer.stop()
            consumer = AIOKafkaConsumer(
                "wide", bootstrap_servers=kafka_broker.bootstrap_servers, auto_offset_reset="earliest"
            )
            await consumer.start()
            assert (await consumer.getone()).value == b"v"
            await consumer.stop()
        """
    )
    # A process of its own, as users have it; what the broker leaves open would be a warning.
    done = project.runpytest_subprocess(*WORDS, "-W", "error", "-W", "ignore::DeprecationWarning")
    done.assert_outcomes(passed=8)


@pytest.mark.parametrize(
    ("ini", "marker", "complaint"),
    [
        ("kafka_broker_settings = num.partitions", "()", "*'num.partitions' is no `name=value`*"),
        ("kafka_broker_topics = t:many", "()", "*'t:many' is no `name` or `name:partitions`*"),
        ("kafka_broker_settings = no.such=1", "()", "*Unknown broker config name: no.such*"),
        ("", "('orders')", "*takes keywords only*"),
        ("", "(num_partitions='many')", "*Invalid value many for configuration num.partitions*"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(project: pytest.Pytester, ini: str, marker: str, complaint: str) -> None:
    project.makeini(f"[pytest]\nasyncio_default_fixture_loop_scope = function\n{ini}\n")
    project.makepyfile(f"import pytest\n@pytest.mark.kafka_broker{marker}\ndef test_it(kafka_broker): ...\n")
    result = project.runpytest_inprocess(*WORDS, "-p", "no:asyncio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([complaint])


def test_fixtures_and_marker_are_listed_with_what_they_are_for(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(*WORDS, "-p", "no:asyncio", "--fixtures")
    result.stdout.fnmatch_lines(
        ["kafka_broker -- *", "*this test alone*", "kafka_session_broker*", "make_kafka_broker*"]
    )
    result = project.runpytest_inprocess(*WORDS, "-p", "no:asyncio", "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.kafka_broker(topics*"])


def test_to_load_it_imports_nothing_of_the_broker(tmp_path: Path) -> None:
    script = (
        "import sys, pytest, contextlib, typing, collections.abc\n"
        "before = set(sys.modules)\n"
        "import log_broker.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == ["log_broker", "log_broker.pytest_plugin"]
