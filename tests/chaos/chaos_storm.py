"""
A storm: every workload runs while the nemesis hurts the cluster; then all is healed, progress is demanded, everything
is read back, and the history is judged.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

from chaos_checker import ALLOWED_BY_KAFKA, Anomaly, Kind, check
from chaos_cluster import Cluster
from chaos_copying import Copying
from chaos_history import History, Op, Record
from chaos_nemesis import Nemesis
from chaos_sequences import read_log, sent_again, sequences_that_are_wrong
from chaos_workloads import Member, Producing, Reading, Workload, read_everything

PARTITIONS = 3
RETRIED = frozenset({Kind.DUPLICATE, Kind.NONMONOTONIC_SEND})
UNSAFE = RETRIED | {Kind.LOST_WRITE, Kind.INCONSISTENT_OFFSETS, Kind.LATE_WRITE}
# What a topic's producer has not been promised. Nothing that was polled may be lost, whatever the producer asked for.
ALLOWED: dict[str, frozenset[Kind]] = {
    "idempotent": frozenset(),
    "acks-all": RETRIED,
    "acks-1": UNSAFE,
    "acks-0": UNSAFE,
    "copied": frozenset(),
}
RATE = 80.0


@dataclass
class Report:
    """What a storm came to."""

    seconds: float = 0.0
    faults: int = 0
    operations: int = 0
    acked: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    doubled: Counter[str] = field(default_factory=Counter)
    transactions: Counter[str] = field(default_factory=Counter)
    allowed: Counter[Kind] = field(default_factory=Counter)
    sent_again: int = 0
    given_up: int = 0
    broken: list[str] = field(default_factory=list)

    def __add__(self, other: "Report") -> "Report":
        return Report(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def __str__(self) -> str:
        lines = [
            f"{self.faults} faults in {self.seconds:.0f} s, {self.operations:,} operations;"
            f" transactions: {self.transactions['ok']} committed, {self.transactions['fail']} aborted,"
            f" {self.transactions['info']} of unknown outcome",
            "topic        acked     lost  doubled",
        ]
        lines += [
            f"{topic:<10} {count:>7,} {self.lost[topic]:>8,} {self.doubled[topic]:>8,}"
            for topic, count in self.acked.items()
        ]
        if self.allowed:
            seen = ", ".join(f"{kind} {count}" for kind, count in self.allowed.items())
            lines.append(f"seen where nothing better was promised: {seen}")
        if self.sent_again:
            lines.append(f"{self.sent_again} records lie twice as their client began a new epoch and sent them again")
        if self.given_up:
            lines.append(f"{self.given_up} times a copier was replaced because a call of its client did not return")
        return "\n".join([*lines, *self.broken[:20], f"{len(self.broken)} broken promises"])


def storm(
    cluster: Cluster, *, seconds: float, seed: int, say: Callable[[str], None], keep: Path | None = None
) -> Report:
    """Run one storm on a cluster that is up; the history is written to `keep`."""
    history = History()
    topics = dict.fromkeys(ALLOWED, PARTITIONS)
    for topic in topics:
        cluster.create_topic(topic, PARTITIONS, min_insync_replicas="2")
    workloads = make_workloads(cluster, history, topics, seed)
    nemesis = Nemesis(cluster, seed, say)
    report = Report()
    began = time.monotonic()
    try:
        for workload in workloads:
            workload.start()
        await_progress(cluster, workloads, "before the first fault")
        nemesis.run(seconds)
        say("all is healed")
        cluster.await_brokers(cluster.brokers)
        for topic in topics:
            for at in range(PARTITIONS):
                cluster.await_isr(topic, cluster.partition(topic, at).replicas, at)
        await_progress(cluster, workloads, "after the last fault")
    finally:
        # Copiers end before what they copy, so that the last transactions need not wait.
        for workload in workloads:
            workload.stop()
        for workload in workloads:
            workload.join()
        if keep is not None:
            history.write(keep / "history.jsonl")
    end = read_everything(cluster.bootstrap, history, topics)
    for topic in topics:
        for at in range(PARTITIONS):
            cluster.await_equal_logs(topic, at)
    if keep is not None:
        history.write(keep / "history.jsonl")
    report.seconds = time.monotonic() - began
    report.faults = nemesis.faults
    for workload in workloads:
        report.broken += workload.problems
        report.given_up += workload.given_up if isinstance(workload, Copying) else 0
    logs = {
        f"idempotent-{at}": read_log(
            cluster.nodes[cluster.partition("idempotent", at).replicas[0]].partition_dir("idempotent", at)
        )
        for at in range(PARTITIONS)
    }
    judge(report, history.ops, sent_again(end, logs))
    for key, log in logs.items():
        report.broken += sequences_that_are_wrong(key, log)
    report.broken += copies_that_are_wrong(end)
    for node in cluster.nodes.values():
        report.broken += node.long_turns()
    return report


def make_workloads(cluster: Cluster, history: History, topics: dict[str, int], seed: int) -> list[Workload]:
    """One producer for each promise, readers, a group and copiers."""
    servers = cluster.bootstrap
    commits: dict[str, int] = {}
    return [
        Producing(servers, history, "idempotent", PARTITIONS, rate=RATE, enable_idempotence=True),
        Producing(servers, history, "acks-all", PARTITIONS, rate=RATE, acks="all"),
        Producing(servers, history, "acks-1", PARTITIONS, rate=RATE, acks="1"),
        Producing(servers, history, "acks-0", PARTITIONS, rate=RATE, acks="0"),
        Reading(servers, history, topics, isolation_level="read_committed"),
        Member(servers, history, "acks-all", name="member 1", commits=commits),
        Member(servers, history, "acks-all", name="member 2", commits=commits),
        Copying(servers, history, "idempotent", "copied", PARTITIONS, name="copier 1", seed=seed),
        Copying(servers, history, "idempotent", "copied", PARTITIONS, name="copier 2", seed=seed + 1),
    ]


def await_progress(cluster: Cluster, workloads: list[Workload], when: str) -> None:
    """Demand that every producer gets on, and of those who share the work (members, copiers) at least one."""
    before = {workload: workload.done for workload in workloads}

    def standing() -> list[str]:
        moving = {workload.work for workload in workloads if workload.done > before[workload]}
        return sorted({workload.work for workload in workloads} - moving)

    try:
        cluster.eventually(lambda: not standing(), f"every workload gets on {when}", seconds=90)
    except AssertionError as error:
        problems = [problem for workload in workloads for problem in workload.problems]
        raise AssertionError(f"{', '.join(standing())} stand still {when}; {problems}") from error


def judge(report: Report, ops: list[Op], again: frozenset[str] = frozenset()) -> None:
    """
    Count what happened to each topic, and hold each anomaly against what was promised there.

    `again` are the values that an idempotent client sent again in another epoch, which no broker can know.
    """
    report.operations = len(ops)
    report.acked = Counter(dict.fromkeys(ALLOWED, 0))
    for op in ops:
        if op.transaction and op.sends:
            report.transactions[op.outcome] += 1
        if op.outcome == "ok":
            report.acked.update(topic_of(record.key) for record in op.sends)
    for anomaly in check(ops):
        if anomaly.kind is Kind.DUPLICATE and anomaly.value in again:
            report.sent_again += 1
        else:
            note(report, anomaly)


def note(report: Report, anomaly: Anomaly) -> None:
    """Put an anomaly where it belongs."""
    topic = topic_of(anomaly.key)
    if anomaly.kind is Kind.LOST_WRITE:
        report.lost[topic] += 1
    if anomaly.kind is Kind.DUPLICATE:
        report.doubled[topic] += 1
    if anomaly.kind in ALLOWED[topic] | ALLOWED_BY_KAFKA:
        report.allowed[anomaly.kind] += 1
    else:
        report.broken.append(str(anomaly))


def copies_that_are_wrong(end: list[Record]) -> list[str]:
    """
    Of each record of the source there is one committed copy: the copiers' group had to begin where it had ended.

    One value can be that of two records, where its client sent it again.
    """
    originals = Counter(record.value for record in end if topic_of(record.key) == "idempotent")
    copies = Counter(record.value.partition(">")[2] for record in end if topic_of(record.key) == "copied")
    twice = [value for value, times in copies.items() if times > max(originals[value], 1)]
    unknown = [value for value in copies if value not in originals]
    problems = [f"{value} was copied {copies[value]} times" for value in twice]
    problems += [f"{value} was copied and is not there" for value in unknown]
    # The copiers end where they are; but what lies between copied records of a partition has been copied.
    of_partition: dict[str, list[str]] = {}
    for record in end:
        if topic_of(record.key) == "idempotent":
            of_partition.setdefault(record.key, []).append(record.value)
    for key, values in of_partition.items():
        done = [at for at, value in enumerate(values) if value in copies]
        gaps = [values[at] for at in range(max(done, default=-1)) if values[at] not in copies]
        if gaps:
            problems.append(f"{len(gaps)} records of {key} were never copied, the first is {gaps[0]}")
    return problems


def topic_of(key: str) -> str:
    return key.partition(", ")[0].rpartition("-")[0]
