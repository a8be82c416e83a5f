"""Scenarios in which a leader dies, is cut off or comes back."""

import time

from chaos_checker import check
from chaos_cluster import Cluster
from chaos_history import History
from chaos_nodes import BEHIND_PROXY
from chaos_scenarios import (
    Sending,
    Stage,
    acked,
    cannot_read,
    error_names,
    expect,
    killed,
    scenario,
    send,
    values_of,
)
from chaos_wire import ask
from chaos_workloads import Producing, Reading, read_everything

LIST_OFFSETS = 2


def placed(cluster: Cluster, leader: int) -> list[list[int]]:
    """One partition on all brokers, led by one of them."""
    return [[leader, *cluster.others(leader)]]


def leader_and_controller(cluster: Cluster) -> tuple[int, int, int]:
    """A broker that is not the active controller to lead, and the two others, the controller last if it is a broker."""
    controller = cluster.controller()
    leader = next(number for number in cluster.brokers if number != controller)
    others = sorted(cluster.others(leader)[:2], key=lambda number: number == controller)
    return leader, others[0], others[1]


@scenario("F-01", "a lone copy dies and all stops; of three copies two go on")
def lone_copy(stage: Stage) -> None:
    cluster = stage.cluster()
    lone, three = stage.topic("lone"), stage.topic("three")
    victim = leader_and_controller(cluster)[0]
    cluster.create_topic(lone, placed=[[victim]], min_insync_replicas="1")
    cluster.create_topic(three, placed=placed(cluster, victim))
    values = values_of(stage, 100)
    for topic in (lone, three):
        assert len(acked(send(cluster.bootstrap, topic, values))) == 100
    with killed(cluster, victim):
        cluster.await_leader(three, cluster.others(victim))
        assert acked(send(cluster.bootstrap, lone, ["more"], seconds=3)) == []
        assert cannot_read(cluster.bootstrap, lone)
        assert acked(send(cluster.bootstrap, three, ["more"])) == ["more"]
        expect(cluster, three, [*values, "more"])
    expect(cluster, lone, values)
    stage.note("one copy: nothing answered until its broker was back; three: all 100 readable, the next acknowledged")


@scenario("F-02", "the leader crashes and an in-sync follower takes over")
def leader_crash(stage: Stage) -> None:
    cluster = stage.cluster()
    topic, history = stage.topic(), History()
    leader = leader_and_controller(cluster)[0]
    cluster.create_topic(topic, placed=placed(cluster, leader))
    before = cluster.partition(topic)
    producer = Producing(cluster.bootstrap, history, topic, 1, rate=200, enable_idempotence=True)
    reader = Reading(cluster.bootstrap, history, {topic: 1})
    producer.start()
    reader.start()
    cluster.eventually(lambda: producer.done > 200 and reader.done > 0, "the clients are at work")
    with killed(cluster, leader):
        killed_at = time.monotonic()
        cluster.await_leader(topic, cluster.others(leader))
        after = cluster.partition(topic, asking=cluster.leader(topic))
        at = producer.done
        cluster.eventually(lambda: producer.done > at + 200, "records are acknowledged again")
        for workload in (producer, reader):
            workload.stop()
            workload.join()
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    began_again = min(op.ended for op in history.ops if op.process == producer.process and op.ended > killed_at + 0.5)
    assert after.leader_epoch > before.leader_epoch
    read_everything(cluster.bootstrap, history, {topic: 1})
    assert check(history.ops) == []
    assert producer.problems + reader.problems == []
    stage.note(
        f"{producer.done} acknowledged, once and in order, equal logs; leader {leader} -> {after.leader}, epoch "
        f"{before.leader_epoch} -> {after.leader_epoch}; {began_again - killed_at:.1f} s without acknowledgement"
    )


@scenario("F-04", "acks=1 loses what no follower has when the leader dies; acks=all has not acknowledged it")
def acks_one_window(stage: Stage) -> None:
    cluster = stage.cluster()
    leader, *followers = leader_and_controller(cluster)
    topics = {acks: stage.topic(f"acks-{acks}") for acks in ("1", "all")}
    before = values_of(stage, 10, "before")
    sending: dict[str, Sending] = {}
    for acks, topic in topics.items():
        cluster.create_topic(topic, placed=placed(cluster, leader))
        sending[acks] = Sending(cluster.bootstrap, topic, acks=acks, message_timeout_ms=120_000).send(before)
        assert acked(sending[acks].wait()) == before
        expect(cluster, topic, before)
    cluster.isolate(leader)
    for each in sending.values():
        each.send(["r1"])
    assert acked(sending["1"].wait(5)) == [*before, "r1"]
    assert acked(sending["all"].wait(2)) == before, "acks=all waits for followers"
    cluster.kill(leader)
    cluster.links.heal()
    expected = {"1": before, "all": [*before, "r1"]}
    for acks, topic in topics.items():
        cluster.await_leader(topic, followers)
        assert acked(sending[acks].wait(60)) == [*before, "r1"], sending[acks].told
        expect(cluster, topic, expected[acks])
    cluster.restart(leader)
    for acks, topic in topics.items():
        cluster.await_isr(topic, cluster.brokers)
        expect(cluster, topic, expected[acks])
    stage.note("acks=1: r1 was acknowledged and lost; acks=all: sent again to the new leader, there once")


@scenario("F-30", "what is not replicated is never shown")
@scenario("F-17", "a leader that returns drops its divergent tail")
def divergent_tail(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    leader, *followers = leader_and_controller(cluster)
    cluster.create_topic(topic, placed=placed(cluster, leader))
    common = values_of(stage, 10, "common")
    sending = Sending(cluster.bootstrap, topic, acks="1").send(common)
    assert acked(sending.wait()) == common
    cluster.await_equal_logs(topic)
    # The followers have it; the leader shows it once their next fetch has told that.
    expect(cluster, topic, common, servers=cluster.addresses([leader]))
    cluster.isolate(leader)
    old = sending.send(values_of(stage, 5, "old")).wait()[10:]
    assert len(acked(old)) == 5
    for _ in range(2):
        expect(cluster, topic, common, servers=cluster.addresses([leader]))
        time.sleep(1)
    cluster.kill(leader)
    cluster.links.heal()
    cluster.await_leader(topic, followers)
    expect(cluster, topic, common)
    new = values_of(stage, 7, "new")
    told = send(cluster.bootstrap, topic, new)
    assert {sent.offset for sent in old} <= {sent.offset for sent in told}, "at the same offsets"
    cluster.restart(leader)
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*common, *new])
    stage.note(
        "5 records acknowledged by the leader alone were never shown and are lost with it; returned, it holds the 7 of"
        " its successor and none of them; the three logs are equal"
    )


@scenario("F-03", "a slow follower leaves the in-sync set and returns equal")
def slow_follower(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, other, slow = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader))
    send(cluster.bootstrap, topic, values_of(stage, 50))
    cluster.links.rule(str(leader), str(slow), bytes_per_second=20_000.0)
    # Ten times as much as the link takes until its follower has to leave.
    block = "x" * 10_000
    more = [f"{value} {block}" for value in values_of(stage, 200, "more")]
    sending = Sending(cluster.bootstrap, topic, acks="all", enable_idempotence=True, message_timeout_ms=120_000).send(
        more
    )
    watermarks = [high_watermark(cluster, leader, topic)]
    while len(acked(sending.wait(0.2))) < len(more):
        watermarks.append(high_watermark(cluster, leader, topic))
    # Acknowledged once the set has shrunk: the high watermark waits for all who are in it.
    assert cluster.isr(topic) == {leader, other}
    cluster.links.heal()

    def is_back() -> bool:
        watermarks.append(high_watermark(cluster, leader, topic))
        return cluster.isr(topic) == set(cluster.brokers)

    cluster.eventually(is_back, "all are in sync again")
    watermarks.append(high_watermark(cluster, leader, topic))
    assert watermarks == sorted(watermarks), "it never goes back"
    assert watermarks[-1] == 50 + len(more)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*values_of(stage, 50), *more])
    stage.note("its link to the leader was slow, not that to the controller: it left for its lag alone")


def high_watermark(cluster: Cluster, leader: int, topic: str) -> int:
    """How far clients of the leader may read."""
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {"name": topic, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
        ],
    }
    answer = ask((BEHIND_PROXY, cluster.node(leader).port), LIST_OFFSETS, 4, values)
    return int(answer.topics[0].partitions[0].offset)


@scenario("F-15", "followers are cut off from the leader, which the controller still sees")
def followers_cut_off(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    leader, *followers = cluster.brokers
    one, two = stage.topic("min-1"), stage.topic("min-2")
    cluster.create_topic(one, placed=placed(cluster, leader), min_insync_replicas="1")
    cluster.create_topic(two, placed=placed(cluster, leader), min_insync_replicas="2")
    for topic in (one, two):
        send(cluster.bootstrap, topic, values_of(stage, 20))
        cluster.await_equal_logs(topic)
    held = {topic: cluster.digest(followers[0], topic) for topic in (one, two)}
    cluster.links.cut([str(leader)], cluster.names(followers))
    # A follower that lacks nothing does not lag.
    send(cluster.bootstrap, two, ["unreplicated"], acks="1")
    assert acked(send(cluster.bootstrap, one, ["goes on"])) == ["goes on"]
    for topic in (one, two):
        cluster.await_isr(topic, [leader])
    refused = send(cluster.bootstrap, two, ["is refused"], seconds=3, retries=0)
    assert acked(refused) == []
    assert error_names(refused) <= {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}, error_names(refused)
    for topic in (one, two):
        assert {cluster.digest(number, topic) for number in followers} == {held[topic]}, "they received nothing"
    cluster.links.heal()
    for topic in (one, two):
        cluster.await_isr(topic, cluster.brokers)
        cluster.await_equal_logs(topic)
    expect(cluster, one, [*values_of(stage, 20), "goes on"])
    expect(cluster, two, [*values_of(stage, 20), "unreplicated"])
    stage.note("min 1 went on with the leader alone, min 2 was refused; after healing three equal logs")
