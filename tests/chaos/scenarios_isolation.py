"""Scenarios of an isolated leader, of pauses and of brokers that return."""

import time
from collections.abc import Callable
from contextlib import suppress

from chaos_cluster import Cluster
from chaos_history import History
from chaos_scenarios import Sending, Sent, Stage, acked, expect, killed, read, scenario, send, values_of
from chaos_workloads import Producing
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic
from scenarios_leaders import placed

SESSION_SECONDS = 6.0  # broker.session.timeout.ms of the clusters
ACKS = ("0", "1", "all")


def isolated_leader(stage: Stage, cluster: Cluster, leader: int, cut: Callable[[], None]) -> None:
    """
    F-16: `cut` isolates the leader of two topics while a client in the zone "in" is at its side and writes with every
    acks, and another, in the zone "out", reaches only the others.
    """
    topics = {"min-1": stage.topic("1"), "min-2": stage.topic("2")}
    common, after = values_of(stage, 100, "common"), values_of(stage, 50, "after")
    inside: dict[tuple[str, str], Sending] = {}
    outside = cluster.others(leader)
    for minimum, topic in topics.items():
        cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas=minimum[-1])
        assert len(acked(send(cluster.bootstrap, topic, common))) == 100
        cluster.await_equal_logs(topic)
        for acks in ACKS:
            servers = cluster.addresses([leader])
            inside[minimum, acks] = Sending(servers, topic, zone="in", acks=acks, message_timeout_ms=120_000)
            # A record of each beforehand: the connections are there when the links are cut.
            inside[minimum, acks].send([f"{minimum} {acks} first"]).wait()
    firsts = {minimum: [f"{minimum} {acks} first" for acks in ACKS] for minimum in topics}
    for minimum, topic in topics.items():
        expect(cluster, topic, [*common, *firsts[minimum]])
    visible = 100 + len(ACKS)
    epochs = {topic: cluster.partition(topic).leader_epoch for topic in topics.values()}
    cut()
    cluster.links.cut(["in"], cluster.names(outside))
    cut_at = time.monotonic()
    took, led = write_inside(cluster, leader, topics, inside, cut_at)
    for minimum, topic in topics.items():
        assert read(cluster.addresses([leader]), topic)[visible:] == [], "nothing above the watermark is visible"
        assert acked(inside[minimum, "all"].told)[1:] == [], "the isolated leader never acknowledges acks=all"
    for minimum, topic in topics.items():
        cluster.await_leader(topic, outside)
        assert cluster.partition(topic, asking=cluster.leader(topic)).leader_epoch > epochs[topic]
        cluster.await_isr(topic, outside)
        assert len(acked(send(cluster.addresses(outside), topic, after))) == 50
        if stage.is_ours:  # Kafka's leaders have no lease
            takes_nothing(cluster, leader, topic, inside[minimum, "0"], inside[minimum, "1"])
        # Asked of its side only: the isolated one still tells of its own watermark.
        expect(cluster, topic, [*common, *firsts[minimum], *after], servers=cluster.addresses(outside))
    unacked = {minimum: sum(1 for _ in inside[minimum, "all"].told) for minimum in topics}
    assert set(unacked.values()) == {1}
    cluster.links.heal()
    for minimum, topic in topics.items():
        cluster.await_isr(topic, cluster.brokers)
        retried = [sent.value for sent in inside[minimum, "all"].wait(60)[1:] if sent.acked]
        assert retried == [f"{minimum} all 0"], "what was not acknowledged is sent again, and stored once"
        lost = [sent.value for acks in ("0", "1") for sent in inside[minimum, acks].told[1:] if sent.acked]
        late = [value for acks in ("0", "1") for value in later(inside[minimum, acks]) if value not in lost]
        cluster.await_equal_logs(topic)
        found = read(cluster.bootstrap, topic)
        assert found[: visible + 50] == [*common, *firsts[minimum], *after]
        assert [value for value in found if value.endswith("all 0")] == retried
        gone = [value for value in lost if value not in found]
        stage.note(
            f"{minimum}: a successor led after {led[minimum]:.1f} s, acks=0/1 was taken for {took[minimum]:.1f} s;"
            f" {len(gone)} of these {len(lost)} records lost; acks=all stored once; three equal logs"
            f"{f'; {len(late)} acknowledged by the successor' if late else ''}"
        )


def write_inside(
    cluster: Cluster, leader: int, topics: dict[str, str], inside: dict[tuple[str, str], Sending], cut_at: float
) -> tuple[dict[str, float], dict[str, float]]:
    """
    Write with every acks on the isolated leader's side until all have successors and some seconds more; return for how
    long acks=1 was taken, and when the others had a leader.
    """
    took = dict.fromkeys(topics, 0.0)
    led: dict[str, float] = {}
    for (minimum, acks), sending in inside.items():
        sending.send([f"{minimum} {acks} 0"])
    number = 0
    asked = cluster.others(leader)[0]
    while len(led) < len(topics) or time.monotonic() - cut_at < max(led.values()) + 2:
        assert time.monotonic() - cut_at < 10 * SESSION_SECONDS, "the others have a leader"
        number += 1
        time.sleep(0.05)
        for minimum, topic in topics.items():
            for acks in ("0", "1"):
                before = len(acked(inside[minimum, acks].told))
                inside[minimum, acks].send([f"{minimum} {acks} {number}"]).wait(0.1)
                if acks == "1" and len(acked(inside[minimum, acks].told)) > before:
                    took[minimum] = time.monotonic() - cut_at
            if minimum not in led and cluster.partition(topic, asking=asked).leader != leader:
                led[minimum] = time.monotonic() - cut_at
    return took, led


def takes_nothing(cluster: Cluster, leader: int, topic: str, unanswered: Sending, answered: Sending) -> None:
    """
    A leader whose successor has appended takes nothing more at acks 0 and 1.

    This is seen in the files of its log, since its high watermark stands still in any case.
    """
    told = acked(answered.told)
    for number in range(20):
        unanswered.send([f"too late {number}"]).wait(0.1)
        answered.send([f"too late {number}"]).wait(0.1)
    held = b"".join(path.read_bytes() for path in cluster.node(leader).partition_dir(topic, 0).glob("*.log"))
    assert b"first" in held, "these are the files of the log"
    assert held.count(b"too late") == 0, "its lease ended before the successor's first append"
    assert acked(answered.told) == told


def later(sending: Sending) -> list[str]:
    """What is acknowledged only now that all links are healed."""
    before = {sent.value for sent in sending.told if sent.acked}
    told: list[Sent] = sending.wait(60)
    return [sent.value for sent in told if sent.acked and sent.value not in before]


@scenario("F-16", "an isolated leader: cut from coordinator, followers and controller")
def isolated(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    leader = cluster.brokers[0]
    isolated_leader(stage, cluster, leader, lambda: cluster.isolate(leader))


@scenario("F-16-controller", "an isolated leader that is the active controller as well")
def isolated_controller(stage: Stage) -> None:
    cluster = stage.cluster()
    leader = cluster.controller()
    isolated_leader(stage, cluster, leader, lambda: cluster.isolate(leader))


@scenario("F-16-one-way", "an isolated leader that still hears the others, and is not heard")
def isolated_one_way(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    leader = cluster.brokers[0]
    isolated_leader(stage, cluster, leader, lambda: cluster.isolate(leader, both_ways=False))


@scenario("F-16-coordinator-only", "a leader cut from the metadata quorum only: its followers still follow it")
def cut_from_quorum(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, *followers = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.bootstrap, topic, acks="all", message_timeout_ms=120_000).send(values_of(stage, 20))
    assert len(acked(sending.wait())) == 20
    cluster.links.cut([str(leader)], cluster.names(cluster.voters))
    cluster.await_leader(topic, followers)
    assert len(acked(sending.send(values_of(stage, 20, "after")).wait(60))) == 40
    cluster.links.heal()
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*values_of(stage, 20), *values_of(stage, 20, "after")])
    stage.note("it was replaced after its session; all 40 acknowledged, there once and in order")


@scenario("F-16-healed", "an isolated leader whose links heal before its session ends: nothing changes")
def healed_in_time(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.bootstrap, topic, acks="all", message_timeout_ms=120_000).send(values_of(stage, 20))
    assert len(acked(sending.wait())) == 20
    before = cluster.partition(topic)
    cluster.isolate(leader)
    sending.send(["waits"])
    time.sleep(SESSION_SECONDS / 3)
    assert len(acked(sending.told)) == 20
    cluster.links.heal()
    assert acked(sending.wait(60))[20:] == ["waits"]
    assert cluster.partition(topic) == before
    stage.note("the same leader in the same epoch; what had waited was acknowledged")


@scenario("F-16-minority", "a leader cut off with one follower: most of the data, none of the metadata quorum")
def cut_with_a_follower(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, beside, outside = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.addresses([leader]), topic, zone="in", acks="all", message_timeout_ms=120_000).send(
        values_of(stage, 20)
    )
    assert len(acked(sending.wait())) == 20
    cluster.isolate(leader, beside)
    cluster.links.cut(["in"], [str(outside)])
    sending.send(["inside"])
    # Two of three brokers know of the old leader only, so the third is asked.
    cluster.eventually(lambda: cluster.partition(topic, asking=outside).leader == outside, "the third leads")
    assert acked(sending.told)[20:] == [], "the watermark waits for the replica on the other side"
    cluster.links.heal()
    assert acked(sending.wait(60))[20:] == ["inside"]
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*values_of(stage, 20), "inside"])
    stage.note(
        "the third replica led; the record that the two had between them was acknowledged by it, and is there once"
    )


@scenario("F-31", "a broker stops pulsing, is fenced, and returns")
def stops_pulsing(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    paused, *others = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, paused))
    sending = Sending(cluster.bootstrap, topic, acks="all", message_timeout_ms=120_000).send(values_of(stage, 20))
    assert len(acked(sending.wait())) == 20
    cluster.node(paused).pause()
    try:
        cluster.eventually(lambda: cluster.partition(topic, asking=others[0]).leader in others, "another leads")
        cluster.eventually(
            lambda: cluster.partition(topic, asking=others[0]).isr == frozenset(others), "the in-sync set shrinks"
        )
        assert len(acked(sending.send(values_of(stage, 20, "after")).wait(60))) == 40
    finally:
        cluster.node(paused).resume()
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*values_of(stage, 20), *values_of(stage, 20, "after")])
    stage.note("fenced after its session, its partitions led by others; resumed, it follows and is in sync again")


@scenario("F-18", "a killed broker returns, catches up, and leads again what it led before")
def leadership_levelled(stage: Stage) -> None:
    cluster = stage.cluster(
        settings={"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "2"}
    )
    topic, history = stage.topic(), History()
    brokers = cluster.brokers
    replicas = [[*brokers[at:], *brokers[:at]] for at in range(3)] * 2
    cluster.create_topic(topic, placed=replicas)
    victim = next(number for number in brokers if number != cluster.controller())
    producer = Producing(cluster.bootstrap, history, topic, len(replicas), rate=100, enable_idempotence=True)
    producer.start()
    cluster.eventually(lambda: producer.done > 100, "the producer is at work")
    with killed(cluster, victim):
        for at in range(len(replicas)):
            cluster.await_leader(topic, cluster.others(victim), at)
    for at, preferred in enumerate(replicas):
        cluster.await_isr(topic, brokers, at)
        cluster.await_leader(topic, [preferred[0]], at)
    leaders = [cluster.leader(topic, at) for at in range(len(replicas))]
    counts = [leaders.count(number) for number in brokers]
    assert max(counts) - min(counts) <= 1
    at_once = producer.done
    cluster.eventually(lambda: producer.done > at_once + 100, "the producer goes on")
    producer.stop()
    producer.join()
    values = [record.value for op in history.ops if op.outcome == "ok" for record in op.sends]
    found = [value for at in range(len(replicas)) for value in read(cluster.bootstrap, topic, at)]
    assert producer.problems == []
    assert sorted(found) == sorted(values)
    stage.note(f"{len(values)} acknowledged, each there once; leaders of a node: {counts}")


@scenario("F-19", "the active controller and a leader die in the same instant")
def controller_and_leader(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, *others = cluster.brokers
    controller = cluster.controller()
    cluster.create_topic(topic, placed=placed(cluster, leader))
    values = values_of(stage, 50)
    assert len(acked(send(cluster.bootstrap, topic, values))) == 50
    began = time.monotonic()
    cluster.kill(controller, leader)
    cluster.await_leader(topic, others)
    seconds = time.monotonic() - began
    new = cluster.controller()
    assert new not in (controller, -1)
    assert acked(send(cluster.bootstrap, topic, ["after"])) == ["after"]
    cluster.restart(controller, leader)
    cluster.await_isr(topic, cluster.brokers)
    expect(cluster, topic, [*values, "after"])
    told = {cluster.controller() for _ in range(10)}
    assert len(told) == 1, "one controller"
    stage.note(f"controller {controller} -> {new}, a leader after {seconds:.1f} s; both came back, nothing lost")


@scenario("F-32", "the majority of the metadata quorum is lost")
def majority_lost(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.bootstrap, topic, acks="all", message_timeout_ms=120_000).send(values_of(stage, 20))
    assert len(acked(sending.wait())) == 20
    lost = cluster.voters[:2]
    cluster.kill(*lost)
    time.sleep(1.5 * SESSION_SECONDS)
    assert len(acked(sending.send(values_of(stage, 20, "without")).wait(30))) == 40, "the data path goes on"
    admin, refused = cluster.admin(), stage.topic("refused")
    with suppress(KafkaException):
        admin.create_topics([NewTopic(refused, 1, 3)], request_timeout=4)[refused].result(10)
        raise AssertionError("a topic was created without a majority")
    cluster.kill(leader)
    sending.send(["waits"])
    time.sleep(SESSION_SECONDS)
    assert len(acked(sending.told)) == 40, "no new leader until a majority returns"
    for number in lost:
        cluster.node(number).start()
    cluster.await_leader(topic, cluster.others(leader))
    assert acked(sending.wait(60))[40:] == ["waits"]
    cluster.restart(leader)
    cluster.await_isr(topic, cluster.brokers)
    expect(cluster, topic, [*values_of(stage, 20), *values_of(stage, 20, "without"), "waits"])
    stage.note("no topic was created, records went on to the live leader; with the majority back a leader, none lost")
