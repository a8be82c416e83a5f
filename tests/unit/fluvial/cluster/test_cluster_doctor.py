"""Settings that lose data in the next outage or contradict each other, each rule by what it finds and leaves alone."""

from collections.abc import Mapping

import pytest

from fluvial.cluster.doctor import (
    RULES,
    DiskFacts,
    Facts,
    Severity,
    TableFacts,
    TopicFacts,
    TopicLoad,
    client_settings,
    counts,
    examine,
)
from fluvial.cluster.profiles import PROFILES

SAFE = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "fluvial.durability": "fsync-quorum"}
BROKER = {
    "default.replication.factor": "-1",
    "group.min.session.timeout.ms": "6000",
    "transaction.max.timeout.ms": "900000",
}


def topic(replicas: int = 3, **changes: str) -> TopicFacts:
    changed = {name.replace("_", "."): value for name, value in changes.items()}
    return TopicFacts(name="orders", replicas=replicas, settings={**SAFE, **changed})


def found(facts: Facts) -> set[tuple[str, str]]:
    return {(finding.severity.value, finding.rule) for finding in examine(facts)}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (topic(), set()),
        (topic(1), {("loses data", "one copy")}),
        (topic(min_insync_replicas="1"), {("loses data", "minimum of one")}),
        (topic(min_insync_replicas="3"), {("stops work", "no copy to spare")}),
        (topic(2), {("stops work", "no copy to spare")}),
        (topic(min_insync_replicas="9"), {("stops work", "no copy to spare")}),
        (
            topic(unclean_leader_election_enable="true"),
            {("loses data", "unclean election"), ("contradiction", "unclean election")},
        ),
        (topic(fluvial_durability="memory"), {("loses data", "not synced")}),
    ],
)
def test_a_topic(one: TopicFacts, expected: set[tuple[str, str]]) -> None:
    assert found(Facts(brokers=3, topics=(one,), broker_settings=BROKER)) == expected


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("acks=all\nenable.idempotence=true\n# retries=0\n", set()),
        ("acks=-1", set()),
        ("request.required.acks=1", {("loses data", "acks"), ("contradiction", "acks")}),
        ("acks=0", {("loses data", "acks"), ("contradiction", "acks")}),
        (
            "acks=1\nenable.idempotence=true",
            {("loses data", "acks"), ("contradiction", "acks"), ("contradiction", "idempotence")},
        ),
        ("retries = 0", {("loses data", "retries")}),
        ("enable.idempotence=false", {("contradiction", "idempotence")}),
        ("message.timeout.ms=5000", {("loses data", "delivery timeout")}),
        ("delivery.timeout.ms=120000", set()),
        ("session.timeout.ms=9000\nheartbeat.interval.ms=8000", {("contradiction", "heartbeats")}),
        ("session.timeout.ms=1000", {("stops work", "session timeout")}),
        ("transaction.timeout.ms=1000000", {("stops work", "transaction timeout")}),
        ("group.id=g", {("note", "first offset")}),
        ("group.id=g\nauto.offset.reset=earliest", set()),
        ("delivery.timeout.ms=soon", set()),
    ],
)
def test_a_client_beside_a_topic(client: str, expected: set[tuple[str, str]]) -> None:
    clients: Mapping[str, Mapping[str, str]] = {"shop.properties": client_settings(client)}
    assert found(Facts(brokers=3, topics=(topic(),), broker_settings=BROKER, clients=clients)) == expected


def test_the_brokers() -> None:
    assert found(Facts(brokers=3, broker_settings={"default.replication.factor": "1"})) == {
        ("loses data", "one copy by default")
    }
    assert found(Facts(brokers=1, broker_settings={"default.replication.factor": "1"})) == set()
    assert found(Facts(brokers=3, replicas_by_broker={0: 4001, 1: 4000})) == {("stops work", "many partitions")}
    assert found(Facts(brokers=1, topics=(topic(1),))) == {("note", "one broker")}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(brokers=3, topics=(TopicFacts(name="t", replicas=3, partitions=3, settings=SAFE),)), set()),
        (
            Facts(brokers=3, topics=(TopicFacts(name="t", replicas=3, partitions=2, settings=SAFE),)),
            {("note", "few partitions")},
        ),
        (Facts(brokers=3, tables=(TableFacts(name="state.t", topic="t"),)), set()),
        (Facts(brokers=3, tables=(TableFacts(name="state.t", topic="t", lost=1),)), {("loses data", "retention")}),
        (Facts(brokers=3, tables=(TableFacts(name="state.t", topic="t", old=1),)), {("loses data", "retention")}),
        (Facts(brokers=3, disks={0: DiskFacts(total_bytes=100, usable_bytes=10), 1: DiskFacts()}), set()),
        (Facts(brokers=3, disks={0: DiskFacts(total_bytes=100, usable_bytes=9)}), {("stops work", "full disk")}),
        (Facts(brokers=3, disks={0: DiskFacts(failed=("/data",))}), {("stops work", "failed disk")}),
        (Facts(brokers=3, clocks={"a": 4.0, "b": -4.0}), set()),
        (Facts(brokers=3, clocks={"a": -6.0}), {("contradiction", "clocks")}),
        (Facts(brokers=3, supported={0: 2, 1: 2}, level=2), set()),
        (Facts(brokers=3, supported={0: 2, 1: 3}, level=2), {("contradiction", "versions")}),
        (Facts(brokers=3, supported={0: 3, 1: 3}, level=2), {("note", "versions")}),
    ],
)
def test_nodes_and_tables(facts: Facts, expected: set[tuple[str, str]]) -> None:
    assert found(facts) == expected


@pytest.mark.parametrize(
    ("partitions", "load", "why", "advised"),
    [
        (3, TopicLoad(), None, 0),
        (2, TopicLoad(), "2 partitions for 3 brokers", 3),
        (3, TopicLoad(consumers=3, group="g"), None, 0),
        (3, TopicLoad(consumers=4, group="g"), "for the 4 members of group g", 6),
        (3, TopicLoad(bytes_per_second=90e6), None, 0),
        (3, TopicLoad(bytes_per_second=200e6), "for 200 MB a second", 9),
        (1, TopicLoad(consumers=2, group="g", bytes_per_second=31e6), ", and for 31 MB a second", 3),
    ],
)
def test_a_number_of_partitions_is_advised(partitions: int, load: TopicLoad, why: str | None, advised: int) -> None:
    one = TopicFacts(name="t", replicas=3, partitions=partitions, settings=SAFE)
    notes = examine(Facts(brokers=3, topics=(one,), loads={"t": load}))
    if why is None:
        assert notes == []
        return
    (note,) = notes
    assert (note.rule, note.severity) == ("few partitions", Severity.NOTE)
    assert why in note.text
    assert f"with {advised} partitions" in note.repair


def test_the_worst_comes_first_and_every_rule_has_been_heard() -> None:
    clients = {"c": client_settings("acks=1\nretries=0\ngroup.id=g")}
    facts = Facts(
        brokers=3,
        topics=(topic(1), topic(2)),
        broker_settings={"default.replication.factor": "1"},
        clients=clients,
    )
    findings = examine(facts)
    order = [list(Severity).index(finding.severity) for finding in findings]
    assert order == sorted(order)
    assert counts(findings)[Severity.LOSES] == 4
    assert all(finding.repair and finding.text for finding in findings)
    assert len(RULES) == 15


def test_the_profiles_are_what_they_say() -> None:
    def of(name: str) -> set[str]:
        profile = PROFILES[name]
        facts = TopicFacts(name="t", replicas=profile.replication_factor, settings=profile.settings)
        return {each.rule for each in examine(Facts(brokers=3, topics=(facts,))) if each.severity is Severity.LOSES}

    durable = PROFILES["durable"]
    assert (durable.replication_factor, durable.settings["min.insync.replicas"]) == (3, "2")
    assert of("durable") == set()
    assert of("available") == {"minimum of one", "unclean election"}
