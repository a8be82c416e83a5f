"""Scenarios in which copies are too few, stale, wiped or not yet on a disk; and the fate of what was acknowledged."""

import json
import time
from typing import Any

from chaos_cluster import Cluster
from chaos_nodes import OurNode
from chaos_scenarios import (
    Sending,
    Stage,
    acked,
    cannot_read,
    error_names,
    expect,
    killed,
    read,
    scenario,
    send,
    values_of,
)
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from scenarios_leaders import placed

REFUSALS = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
# The rows and columns of the table of fates.
CRASH, FOLLOWERS, UNCLEAN, POWER = (
    "leader crash",
    "followers lost, then the last copy",
    "unclean election",
    "power loss of all",
)
SETTINGS = {
    "acks=0": ("0", {"min_insync_replicas": "1", "fluvial_durability": "memory"}),
    "acks=1": ("1", {"min_insync_replicas": "1", "fluvial_durability": "memory"}),
    "acks=all, min 1": ("all", {"min_insync_replicas": "1", "fluvial_durability": "memory"}),
    "acks=all, min 2": ("all", {"min_insync_replicas": "2", "fluvial_durability": "memory"}),
    "acks=all, min 2, fsync-quorum": ("all", {"min_insync_replicas": "2", "fluvial_durability": "fsync-quorum"}),
}


def set_topic(cluster: Cluster, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = cluster.admin()
    admin.incremental_alter_configs([resource], request_timeout=10)[resource].result(20)


def events(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """What the cluster's diary has of a kind."""
    found = [json.loads(text) for text in read(cluster.bootstrap, "__fluvial_events")]
    return [event for event in found if event["kind"] == kind]


def alone(cluster: Cluster, topic: str, leader: int) -> None:
    """Kill every follower of a topic, and wait until the leader is its only in-sync replica."""
    cluster.kill(*cluster.others(leader))
    cluster.await_isr(topic, [leader])


@scenario("F-06", "a broker's disk is gone for ever")
def disk_gone(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    lone, three = stage.topic("lone"), stage.topic("three")
    victim = cluster.brokers[0]
    cluster.create_topic(lone, placed=[[victim]], min_insync_replicas="1")
    cluster.create_topic(three, placed=placed(cluster, victim))
    values = values_of(stage, 100)
    for topic in (lone, three):
        assert len(acked(send(cluster.bootstrap, topic, values))) == 100
    cluster.kill(victim)
    cluster.await_leader(three, cluster.others(victim))
    assert cannot_read(cluster.bootstrap, lone)
    cluster.node(victim).wipe()
    cluster.restart(victim)
    cluster.await_isr(three, cluster.brokers)
    cluster.await_equal_logs(three)
    expect(cluster, three, values)
    stage.note("three copies: rebuilt from the others, in sync only with the whole log, all 100 readable")
    cluster.await_leader(lone, [victim])
    assert read(cluster.bootstrap, lone) == []
    if cluster.kind == "ours":
        cluster.eventually(
            lambda: (lone, victim) in {(each["topic"], each["leader"]) for each in events(cluster, "log_lost")},
            "the loss of the lone copy is reported",
        )
        stage.note("one copy: comes up empty, and the diary says so")


@scenario("F-07", "acks=0 loses silently and is never sent again")
def silent_loss(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader))
    sending = Sending(cluster.bootstrap, topic, zone="dropped", acks="0", batch_num_messages=1)
    sending.send(["first"]).wait()
    expect(cluster, topic, ["first"])
    cluster.links.rule("dropped", str(leader), discard=True)
    values = values_of(stage, 100)
    told = sending.send(values).wait()
    time.sleep(1)
    cluster.links.heal()
    assert len(acked(told)) == 101, "the client reports success"
    time.sleep(1)
    sending.wait()
    found = read(cluster.bootstrap, topic)
    assert len(found) < 101
    assert len(set(found)) == len(found)
    stage.note(f"101 reported as sent, {len(found)} stored, none sent again")


@scenario("F-08", "fewer in-sync replicas than the minimum")
def below_minimum(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, first, second = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas="2")
    values = values_of(stage, 20)
    assert len(acked(send(cluster.bootstrap, topic, values))) == 20
    expect(cluster, topic, values)
    alone(cluster, topic, leader)
    refused = send(cluster.bootstrap, topic, ["refused"], retries=0, seconds=5)
    assert acked(refused) == []
    assert error_names(refused) <= REFUSALS, error_names(refused)
    taken = send(cluster.bootstrap, topic, ["acks-1"], acks="1", seconds=5)
    assert acked(taken) == ["acks-1"], "documented: acks=1 asks for no other copy"
    expect(cluster, topic, values)
    waiting = Sending(cluster.bootstrap, topic, acks="all", enable_idempotence=True, message_timeout_ms=120_000)
    waiting.send(["waits"])
    cluster.restart(first)
    assert acked(waiting.wait(90)) == ["waits"]
    cluster.restart(second)
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    expect(cluster, topic, [*values, "acks-1", "waits"])
    stage.note("acks=all refused and nowhere later, acks=1 taken, reads served; with one follower back all went on")


@scenario("F-08-combined", "two of three combined nodes are lost: the metadata quorum with them")
def below_minimum_combined(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas="2")
    sending = Sending(cluster.bootstrap, topic, acks="all", enable_idempotence=True, message_timeout_ms=180_000)
    values = values_of(stage, 20)
    assert len(acked(sending.send(values).wait())) == 20
    cluster.kill(*cluster.others(leader))
    sending.send(["waits"])
    sending.wait(10)
    assert acked(sending.told)[20:] == [], "nobody can take the dead out of the in-sync set, and they do not answer"
    taken = acked(send(cluster.addresses([leader]), topic, ["late"], acks="1", seconds=3))
    if stage.is_ours:
        assert taken == [], "the lease has ended: acks=1 is refused"
    cluster.restart(*cluster.others(leader))
    assert acked(sending.wait(120))[20:] == ["waits"]
    cluster.await_isr(topic, cluster.brokers)
    cluster.await_equal_logs(topic)
    found = read(cluster.bootstrap, topic)
    assert [value for value in found if value != "late"] == [*values, "waits"]
    stage.note(
        f"acks=all waited, acks=1 after the lease: {'taken' if taken else 'refused'}; with the nodes back all is there"
    )


@scenario("F-09", "the last replica standing accepts acks=all")
def last_standing(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader, first, second = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas="1")
    values = values_of(stage, 20)
    assert len(acked(send(cluster.bootstrap, topic, values))) == 20
    cluster.kill(first)
    cluster.await_isr(topic, [leader, second])
    cluster.kill(second)
    cluster.await_isr(topic, [leader])
    more = values_of(stage, 20, "alone")
    assert len(acked(send(cluster.bootstrap, topic, more))) == 20
    cluster.kill(leader)
    cluster.restart(first, second)
    assert acked(send(cluster.bootstrap, topic, ["refused"], seconds=8)) == []
    assert cluster.leader(topic) == -1, "unclean election is off"
    cluster.restart(leader)
    cluster.await_isr(topic, cluster.brokers)
    expect(cluster, topic, [*values, *more])
    stage.note("20 records taken by one copy alone; with it gone no leader, with it back nothing lost")


def unclean(stage: Stage, *, allowed: bool) -> tuple[list[str], list[str], float]:
    """
    F-11: RF 2, one copy stops, 50 more are acknowledged, the other dies and the stale one comes back.

    Returns what was acknowledged, what is there in the end, and for how long nobody led; negative: until A was back.
    """
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic("unclean" if allowed else "clean")
    a, b = cluster.brokers[:2]
    cluster.create_topic(
        topic, placed=[[a, b]], min_insync_replicas="1", unclean_leader_election_enable=str(allowed).lower()
    )
    values, more = values_of(stage, 20), values_of(stage, 50, "more")
    assert len(acked(send(cluster.bootstrap, topic, values))) == 20
    cluster.kill(b)
    cluster.await_isr(topic, [a])
    assert len(acked(send(cluster.bootstrap, topic, more))) == 50
    cluster.kill(a)
    began = time.monotonic()
    cluster.restart(b)
    if allowed:
        cluster.await_leader(topic, [b])
        without = time.monotonic() - began
        expect(cluster, topic, values)
    else:
        cluster.await_leader(topic, [-1])
        time.sleep(2)
        assert cluster.leader(topic) == -1, "b has come back, and is not in sync"
        without = -1.0
    cluster.restart(a)
    cluster.await_isr(topic, [a, b])
    cluster.eventually(lambda: cluster.digest(a, topic) == cluster.digest(b, topic), "both copies are equal")
    expect(cluster, topic, values if allowed else [*values, *more])
    return [*values, *more], read(cluster.bootstrap, topic), without


@scenario("F-11", "unclean election, off and on")
def unclean_both_ways(stage: Stage) -> None:
    for allowed in (False, True):
        told, found, without = unclean(stage, allowed=allowed)
        lost = [value for value in told if value not in found]
        assert len(lost) == (50 if allowed else 0)
        how = f"a leader after {without:.1f} s" if allowed else "no leader until the copy was back"
        stage.note(f"unclean.leader.election.enable={str(allowed).lower()}: {how}, {len(lost)} of {len(told)} lost")


@scenario("F-12", "no in-sync replica left: consistency or availability, under load")
def consistency_or_availability(stage: Stage) -> None:
    stage.note("profile    errors  lost")
    for profile, allowed in (("durable", False), ("available", True)):
        cluster = stage.cluster(separate_voters=3)
        topic = stage.topic(profile)
        a, b = cluster.brokers[:2]
        cluster.create_topic(
            topic, placed=[[a, b]], min_insync_replicas="1", unclean_leader_election_enable=str(allowed).lower()
        )
        sending = Sending(cluster.bootstrap, topic, acks="all", message_timeout_ms=8_000)
        sending.send(values_of(stage, 50)).wait()
        cluster.kill(b)
        cluster.await_isr(topic, [a])
        sending.send(values_of(stage, 50, "alone")).wait()
        cluster.kill(a)
        cluster.restart(b)
        if allowed:
            cluster.await_leader(topic, [b])
        for number in range(5):
            sending.send([f"{stage.name}-late{number}"]).wait(15)
        cluster.restart(a)
        cluster.await_leader(topic, [a, b])
        cluster.await_isr(topic, [a, b])
        found = read(cluster.bootstrap, topic)
        lost = [value for value in acked(sending.told) if value not in found]
        errors = len([sent for sent in sending.told if not sent.acked])
        stage.note(f"{profile:<10} {errors:>6} {len(lost):>5}")
        assert bool(lost) == allowed
        assert bool(errors) != allowed


@scenario("F-37", "the minimum of in-sync replicas is lowered at the wrong moment")
def lowered_minimum(stage: Stage) -> None:
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic()
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader), min_insync_replicas="2")
    assert len(acked(send(cluster.bootstrap, topic, values_of(stage, 20)))) == 20
    alone(cluster, topic, leader)
    assert acked(send(cluster.bootstrap, topic, ["refused"], retries=0, seconds=5)) == []
    set_topic(cluster, topic, "min.insync.replicas", "1")
    told = send(cluster.bootstrap, topic, values_of(stage, 20, "alone"))
    assert len(acked(told)) == 20, "at once, without a restart"
    cluster.kill(leader)
    cluster.restart(*cluster.others(leader))
    cluster.await_leader(topic, [-1])
    cluster.restart(leader)
    cluster.await_isr(topic, cluster.brokers)
    expect(cluster, topic, [*values_of(stage, 20), *values_of(stage, 20, "alone")])
    stage.note("20 records hung on one copy after the change; unavailable without it, nothing lost with it back")


@scenario("F-05", "topics get three copies by default, so that one broker's outage takes nothing away")
def copies_by_default(stage: Stage) -> None:
    cluster = stage.cluster()
    topic = stage.topic()
    admin = cluster.admin()
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    cluster.await_leader(topic, cluster.brokers)
    copies = len(cluster.partition(topic).replicas)
    values = values_of(stage, 20)
    assert len(acked(send(cluster.bootstrap, topic, values))) == 20
    victim = cluster.leader(topic)
    if stage.is_ours:
        assert copies == 3
        with killed(cluster, victim):
            expect(cluster, topic, values)
    stage.note(f"{copies} copies when none were asked for")


@scenario("F-23", "the whole site loses power before anything is synced that need not be", only_ours=True)
def power_loss(stage: Stage) -> None:
    for durability in ("memory", "fsync-quorum"):
        cluster = stage.cluster(separate_voters=3)
        topic = stage.topic(durability)
        cluster.create_topic(
            topic, placed=placed(cluster, cluster.brokers[0]), min_insync_replicas="2", fluvial_durability=durability
        )
        values = values_of(stage, 1000)
        assert len(acked(send(cluster.bootstrap, topic, values))) == 1000
        taken = lose_power(cluster)
        cluster.restart(*cluster.brokers)
        cluster.await_leader(topic, cluster.brokers)
        found = read(cluster.bootstrap, topic)
        assert found == values[: len(found)], "a prefix: no hole, no garbage"
        if durability == "fsync-quorum":
            assert found == values
        stage.note(f"{durability}: {1000 - len(found)} of 1000 acknowledged records are gone, {taken:,} bytes unsynced")


def lose_power(cluster: Cluster) -> int:
    """Cut the power of every broker at once; return how many bytes of logs were not on their disks."""
    nodes = [node for node in map(cluster.node, cluster.brokers) if isinstance(node, OurNode)]
    for node in nodes:
        node.pause()
    return sum(node.lose_power() for node in nodes)


@scenario("fates", "the expected fate of an acknowledged record: each cell of the table from a run of its own")
def fates(stage: Stage) -> None:
    for setting, (acks, settings) in SETTINGS.items():
        if "fsync" in setting and not stage.is_ours:
            continue
        config = {name: value for name, value in settings.items() if stage.is_ours or not name.startswith("fluvial")}
        stage.fate(setting, CRASH, fate_of_crash(stage, setting, acks, config))
        stage.fate(setting, FOLLOWERS, fate_of_lost_followers(stage, setting, acks, config))
        stage.fate(setting, UNCLEAN, fate_of_unclean_election(stage, setting, acks, config))
        if stage.is_ours:
            stage.fate(setting, POWER, fate_of_power_loss(stage, setting, acks, config))


def told_and_lost(cluster: Cluster, topic: str, sending: Sending) -> str:
    """How many of the acknowledged records are gone."""
    cluster.await_isr(topic, cluster.partition(topic).replicas)
    found = set(read(cluster.bootstrap, topic))
    told = acked(sending.told)
    lost = [value for value in told if value not in found]
    return f"{len(lost)} of {len(told)} lost" if told else "refused: nothing lost"


def name_of(setting: str, fault: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in f"{setting}-{fault}")


def fate_of_crash(stage: Stage, setting: str, acks: str, config: dict[str, str]) -> str:
    """The leader dies with records that no follower has: they were on their way when its links were cut."""
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic(name_of(setting, CRASH))
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader), **config)
    sending = Sending(cluster.bootstrap, topic, acks=acks, message_timeout_ms=120_000)
    sending.send(values_of(stage, 10)).wait()
    expect(cluster, topic, values_of(stage, 10))
    cluster.await_equal_logs(topic)
    cluster.isolate(leader)
    sending.send(values_of(stage, 10, "late")).wait(2)
    cluster.kill(leader)
    cluster.links.heal()
    cluster.await_leader(topic, cluster.others(leader))
    sending.wait(90)
    cluster.restart(leader)
    return told_and_lost(cluster, topic, sending)


def fate_of_lost_followers(stage: Stage, setting: str, acks: str, config: dict[str, str]) -> str:
    """The followers die, records are sent, then the last copy loses its disk and a follower is let lead."""
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic(name_of(setting, FOLLOWERS))
    leader = cluster.brokers[0]
    cluster.create_topic(topic, placed=placed(cluster, leader), **config)
    sending = Sending(cluster.bootstrap, topic, acks=acks, message_timeout_ms=5_000)
    sending.send(["first"]).wait()
    alone(cluster, topic, leader)
    sending.told.clear()
    sending.send(values_of(stage, 10)).wait(10)
    cluster.kill(leader)
    cluster.node(leader).wipe()
    cluster.restart(*cluster.others(leader))
    # Nobody who is left was in sync, so nobody leads unless that is asked for.
    set_topic(cluster, topic, "unclean.leader.election.enable", "true")
    cluster.await_leader(topic, cluster.others(leader))
    cluster.restart(leader)
    return told_and_lost(cluster, topic, sending)


def fate_of_unclean_election(stage: Stage, setting: str, acks: str, config: dict[str, str]) -> str:
    """All who hold the last records are gone, and a stale replica is let lead."""
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic(name_of(setting, UNCLEAN))
    leader, second, stale = cluster.brokers
    cluster.create_topic(topic, placed=placed(cluster, leader), unclean_leader_election_enable="true", **config)
    sending = Sending(cluster.bootstrap, topic, acks=acks, message_timeout_ms=60_000)
    sending.send(values_of(stage, 10)).wait()
    expect(cluster, topic, values_of(stage, 10))
    cluster.kill(stale)
    cluster.await_isr(topic, [leader, second])
    sending.send(values_of(stage, 10, "late")).wait()
    cluster.kill(leader, second)
    cluster.restart(stale)
    cluster.await_leader(topic, [stale])
    cluster.restart(leader, second)
    return told_and_lost(cluster, topic, sending)


def fate_of_power_loss(stage: Stage, setting: str, acks: str, config: dict[str, str]) -> str:
    """The power of all brokers goes right after the acknowledgements."""
    cluster = stage.cluster(separate_voters=3)
    topic = stage.topic(name_of(setting, POWER))
    cluster.create_topic(topic, placed=placed(cluster, cluster.brokers[0]), **config)
    sending = Sending(cluster.bootstrap, topic, acks=acks, message_timeout_ms=60_000)
    sending.send(values_of(stage, 100)).wait()
    lose_power(cluster)
    cluster.restart(*cluster.brokers)
    cluster.await_leader(topic, cluster.brokers)
    return told_and_lost(cluster, topic, sending)
