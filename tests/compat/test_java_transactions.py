"""Transactions with the Java client: consume, transform and produce with random aborts, and its admin's tools."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from test_java_client import consumer, poll_values, producer, properties

import log_broker
from log_broker.core.transactions.records import TransactionState

pytestmark = pytest.mark.spark

RECORDS = 100


@pytest.fixture(scope="module")
def embedded() -> Iterator[Any]:
    with log_broker.embedded(num_partitions="2") as running:
        yield running


def record(jvm: Any, topic: str, key: str, value: str) -> Any:
    return jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, key, value)


def transactional(jvm: Any, embedded: Any, name: str) -> Any:
    made = producer(jvm, embedded.bootstrap_servers, transactional_id=name, linger_ms="0", max_block_ms="30000")
    made.initTransactions()
    return made


def test_copying_with_random_aborts_copies_each_record_once(jvm: Any, embedded: Any) -> None:
    source = producer(jvm, embedded.bootstrap_servers)
    for number in range(RECORDS):
        source.send(record(jvm, "copy-in", f"key-{number % 7}", str(number)))
    source.close()
    chance = random.Random(3)
    aborts, copied = 0, 0
    copier = transactional(jvm, embedded, "copier")
    reading = consumer(
        jvm,
        embedded.bootstrap_servers,
        group_id="copier",
        enable_auto_commit="false",
        isolation_level="read_committed",
        max_poll_records="20",
    )
    reading.subscribe(["copy-in"])
    while copied < RECORDS:
        polled = reading.poll(jvm.java.time.Duration.ofMillis(500))
        if polled.isEmpty():
            continue
        copier.beginTransaction()
        found = polled.iterator()
        while found.hasNext():
            value = found.next().value()
            copier.send(record(jvm, "copy-out", f"key-{int(value) % 7}", value))
        positions = jvm.java.util.HashMap()
        for partition in reading.assignment():
            offset = jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(reading.position(partition))
            positions.put(partition, offset)
        copier.sendOffsetsToTransaction(positions, reading.groupMetadata())
        if chance.random() < 0.3:
            copier.flush()
            copier.abortTransaction()
            aborts += 1
            committed = reading.committed(reading.assignment())
            for partition in reading.assignment():
                known = committed[partition]
                reading.seek(partition, 0 if known is None else known.offset())
        else:
            copier.commitTransaction()
            copied += polled.count()
    reading.close()
    copier.close()
    assert aborts > 0
    for isolation, exact in (("read_committed", True), ("read_uncommitted", False)):
        checking = consumer(jvm, embedded.bootstrap_servers, group_id=isolation, isolation_level=isolation)
        checking.subscribe(["copy-out"])
        values = poll_values(jvm, checking, RECORDS if exact else RECORDS + 1)
        assert set(values) == {str(number) for number in range(RECORDS)}
        assert (len(values) == RECORDS) == exact
        checking.close()


def test_a_hanging_transaction_is_found_and_aborted(jvm: Any, embedded: Any) -> None:
    hanging = transactional(jvm, embedded, "hanging")
    hanging.beginTransaction()
    place = hanging.send(record(jvm, "hung", "k", "v")).get()
    partition = jvm.org.apache.kafka.common.TopicPartition("hung", place.partition())
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(
        properties(jvm, bootstrap_servers=embedded.bootstrap_servers)
    )
    listed = {found.transactionalId(): found for found in admin.listTransactions().all().get()}
    assert listed["hanging"].state().toString() == TransactionState.ONGOING.label
    described = admin.describeTransactions(["hanging"]).all().get()["hanging"]
    assert set(described.topicPartitions()) == {partition}
    options = jvm.org.apache.kafka.clients.admin.ListTransactionsOptions().filterOnDuration(3_600_000)
    assert admin.listTransactions(options).all().get().isEmpty(), "none is that old"

    (state,) = admin.describeProducers([partition]).all().get()[partition].activeProducers()
    assert state.producerId() == listed["hanging"].producerId()
    assert state.currentTransactionStartOffset().getAsLong() == place.offset()
    reading = consumer(jvm, embedded.bootstrap_servers, isolation_level="read_committed")
    assert reading.endOffsets([partition])[partition] == place.offset()
    abort = jvm.org.apache.kafka.clients.admin.AbortTransactionSpec(
        partition, state.producerId(), state.producerEpoch(), 0
    )
    admin.abortTransaction(abort).all().get()
    assert reading.endOffsets([partition])[partition] == place.offset() + 2
    (state,) = admin.describeProducers([partition]).all().get()[partition].activeProducers()
    assert state.currentTransactionStartOffset().isEmpty()
    reading.close()
    admin.close()
    hanging.close(jvm.java.time.Duration.ofMillis(0))


def test_the_admin_fences_a_producer(jvm: Any, embedded: Any) -> None:
    fenced = transactional(jvm, embedded, "to-be-fenced")
    admin = jvm.org.apache.kafka.clients.admin.Admin.create(
        properties(jvm, bootstrap_servers=embedded.bootstrap_servers)
    )
    admin.fenceProducers(["to-be-fenced"]).all().get()
    fenced.beginTransaction()
    fenced.send(record(jvm, "fenced", "k", "v"))
    with pytest.raises(Exception, match=r"Fenced|InvalidProducerEpoch"):
        fenced.commitTransaction()
    fenced.close(jvm.java.time.Duration.ofMillis(0))
    admin.close()
