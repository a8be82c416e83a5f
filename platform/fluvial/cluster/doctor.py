"""
Settings that lose data or stop work in the next outage, or that contradict each other, found before it comes.

Looks at brokers, topics and clients together: `acks=1` is one choice and `min.insync.replicas=2` another, and beside
each other the one takes away what the other asks for. A rule reads facts and returns findings; nothing here asks a
cluster.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fluvial.cluster.partition_advice import BYTES_PER_SECOND, advised_partitions

SESSION_MS = 9_000  # broker.session.timeout.ms where nobody tells
REPLICAS_MAX = 4_000  # of one broker: beyond it a failover of all takes many seconds
CLOCK_SECONDS_MAX = 5.0
DISK_FREE_MIN = 0.1  # a share of the whole


class Severity(Enum):
    """How bad it is, the worst first."""

    LOSES = "loses data"
    EXPOSES = "lets others in"
    STOPS = "stops work"
    CONTRADICTS = "contradiction"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, with what it concerns, what happens and what would be better."""

    severity: Severity
    rule: str
    about: str
    text: str
    repair: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic: the fewest replicas of any of its partitions, how many these are if known, and its settings."""

    name: str
    replicas: int
    partitions: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def min_isr(self) -> int:
        """How many copies acks=all asks for: never more than there are."""
        return min(_number(self.settings, "min.insync.replicas", 1), self.replicas)

    def is_on(self, setting: str) -> bool:
        return self.settings.get(setting, "false") == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table: the records of its topic that were deleted before it read them, and those that soon will be."""

    name: str
    topic: str
    lost: int = 0
    old: int = 0
    """Records that it has not read and that are older than half of the topic's retention.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """The bytes that a topic took a second of late, and the members of the largest group that reads it."""

    bytes_per_second: float = 0.0
    consumers: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """A broker's disk in bytes, None where it does not tell, and the directories on it that have failed."""

    total_bytes: int | None = None
    usable_bytes: int | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """
    All that is looked at. `clients` maps the name of each to its settings, as `client_settings` reads them.

    `clocks` maps the address of a registry to the seconds that its machine's clock is ahead of this one's; `supported`
    each broker to the highest metadata.version that it supports, and `level` is the cluster's.
    """

    brokers: int
    topics: tuple[TopicFacts, ...] = ()
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    replicas_by_broker: Mapping[int, int] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tables: tuple[TableFacts, ...] = ()
    loads: Mapping[str, TopicLoad] = field(default_factory=dict)
    disks: Mapping[int, DiskFacts] = field(default_factory=dict)
    clocks: Mapping[str, float] = field(default_factory=dict)
    supported: Mapping[int, int] = field(default_factory=dict)
    level: int = 0


Rule = Callable[[Facts], Iterable[Finding]]

# librdkafka's and older names, and the ones that they mean.
_SYNONYMS = {
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
}


def client_settings(text: str) -> dict[str, str]:
    """Read the lines `name=value` of a client's configuration file; comments and what is no setting are left out."""
    read = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        name = name.strip()
        if equals and name and not name.startswith(("#", "!", "//")):
            read[_SYNONYMS.get(name, name)] = value.strip()
    if read.get("acks") == "-1":
        read["acks"] = "all"
    return read


def _number(settings: Mapping[str, str], name: str, default: int = 0) -> int:
    """Return a setting as a number; what is none is for the client itself to refuse."""
    text = settings.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else default


def examine(facts: Facts) -> list[Finding]:
    """Return what every rule finds, the worst first."""
    return in_order(finding for rule in RULES for finding in rule(facts))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: (order.index(finding.severity), finding.rule, finding.about))


def _one_copy(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        if topic.replicas < 2 <= facts.brokers:
            yield Finding(
                severity=Severity.LOSES,
                rule="one copy",
                about=f"topic {topic.name}",
                text="has one copy: its broker's outage stops it, and that broker's disk takes it away",
                repair=f"fluvial cluster reassign {topic.name} --replication-factor {min(3, facts.brokers)} --execute",
            )
    if facts.brokers == 1 and facts.topics:
        yield Finding(
            severity=Severity.NOTE,
            rule="one broker",
            about="cluster",
            text="has one broker, so that no topic can have a second copy",
            repair="fluvial up --brokers 3",
        )


def _single_copy_acknowledged(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        if topic.replicas > 1 and topic.min_isr < 2:
            yield Finding(
                severity=Severity.LOSES,
                rule="minimum of one",
                about=f"topic {topic.name}",
                text="min.insync.replicas=1: with the others down acks=all is answered for a single copy",
                repair=f"fluvial cluster config set --topic {topic.name} min.insync.replicas=2",
            )


def _no_copy_to_spare(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        if topic.replicas > 1 and topic.min_isr == topic.replicas:
            yield Finding(
                severity=Severity.STOPS,
                rule="no copy to spare",
                about=f"topic {topic.name}",
                text=f"min.insync.replicas={topic.min_isr} of {topic.replicas} copies: "
                "one broker's outage stops every acks=all",
                repair="one copy more than min.insync.replicas",
            )


def _unclean(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        if not topic.is_on("unclean.leader.election.enable"):
            continue
        yield Finding(
            severity=Severity.LOSES,
            rule="unclean election",
            about=f"topic {topic.name}",
            text="unclean.leader.election.enable=true: a replica that lacks records may lead, and they are lost",
            repair=f"fluvial cluster config set --topic {topic.name} unclean.leader.election.enable=false",
        )
        if topic.min_isr > 1:
            yield Finding(
                severity=Severity.CONTRADICTS,
                rule="unclean election",
                about=f"topic {topic.name}",
                text=f"min.insync.replicas={topic.min_isr} protects records that an unclean election may lose",
                repair="choose one of the profiles durable and available",
            )


def _not_synced(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        if topic.settings.get("fluvial.durability") == "memory":
            yield Finding(
                severity=Severity.LOSES,
                rule="not synced",
                about=f"topic {topic.name}",
                text="fluvial.durability=memory: a power cut of all its brokers takes what was not written out",
                repair=f"fluvial cluster config set --topic {topic.name} fluvial.durability=fsync-quorum",
            )


def _one_copy_by_default(facts: Facts) -> Iterator[Finding]:
    if facts.brokers > 1 and facts.broker_settings.get("default.replication.factor") == "1":
        made = facts.broker_settings.get("auto.create.topics.enable", "true") == "true"
        yield Finding(
            severity=Severity.LOSES,
            rule="one copy by default",
            about="brokers",
            text="default.replication.factor=1: topics created without a replication factor have one replica"
            + (", and auto.create.topics.enable creates such topics" if made else ""),
            repair="default.replication.factor=3",
        )


def _too_many_partitions(facts: Facts) -> Iterator[Finding]:
    for broker, count in sorted(facts.replicas_by_broker.items()):
        if count > REPLICAS_MAX:
            yield Finding(
                severity=Severity.STOPS,
                rule="many partitions",
                about=f"broker {broker}",
                text=f"holds {count} replicas, more than {REPLICAS_MAX}: electing leaders for all of them takes long",
                repair="fewer partitions, or more brokers",
            )


def _acks(facts: Facts) -> Iterator[Finding]:
    asked = max((topic.min_isr for topic in facts.topics), default=1)
    for name, client in facts.clients.items():
        acks = client.get("acks")
        if acks in {"0", "1"}:
            what = (
                "does not learn which records are lost"
                if acks == "0"
                else "gets records acknowledged that only the leader has"
            )
            yield Finding(
                severity=Severity.LOSES, rule="acks", about=name, text=f"acks={acks}: it {what}", repair="acks=all"
            )
            if asked > 1:
                yield Finding(
                    severity=Severity.CONTRADICTS,
                    rule="acks",
                    about=name,
                    text=f"acks={acks} passes by the min.insync.replicas={asked} of the topics",
                    repair="acks=all",
                )
            if client.get("enable.idempotence") == "true" or "transactional.id" in client:
                yield Finding(
                    severity=Severity.CONTRADICTS,
                    rule="idempotence",
                    about=name,
                    text=f"acks={acks} beside enable.idempotence or transactional.id, which need acks=all",
                    repair="acks=all",
                )


def _retries(facts: Facts) -> Iterator[Finding]:
    for name, client in facts.clients.items():
        if client.get("retries") == "0":
            yield Finding(
                severity=Severity.LOSES,
                rule="retries",
                about=name,
                text="retries=0: records in flight when a leader changes are lost",
                repair="leave retries at its default, and bound them by delivery.timeout.ms",
            )
        if client.get("enable.idempotence") == "false" and client.get("retries") != "0":
            flight = _number(client, "max.in.flight.requests.per.connection", 5)
            text = "retries without enable.idempotence store a record twice"
            text += " and change the order of records in flight" if flight > 1 else ""
            yield Finding(
                severity=Severity.CONTRADICTS,
                rule="idempotence",
                about=name,
                text=text,
                repair="enable.idempotence=true",
            )
        session = _number(facts.broker_settings, "broker.session.timeout.ms", SESSION_MS)
        delivery = _number(client, "delivery.timeout.ms")
        if 0 < delivery <= session:
            yield Finding(
                severity=Severity.LOSES,
                rule="delivery timeout",
                about=name,
                text=f"delivery.timeout.ms={delivery} ends before a failover may ({session} ms until a silent "
                "broker is fenced)",
                repair=f"delivery.timeout.ms of {3 * session} or more",
            )


def _consumers(facts: Facts) -> Iterator[Finding]:
    for name, client in facts.clients.items():
        session = _number(client, "session.timeout.ms")
        beat = _number(client, "heartbeat.interval.ms")
        if session and beat * 3 > session:
            yield Finding(
                severity=Severity.CONTRADICTS,
                rule="heartbeats",
                about=name,
                text=f"heartbeat.interval.ms={beat} leaves less than three beats in session.timeout.ms={session}",
                repair=f"heartbeat.interval.ms={session // 3}",
            )
        least = _number(facts.broker_settings, "group.min.session.timeout.ms")
        if 0 < session < least:
            yield Finding(
                severity=Severity.STOPS,
                rule="session timeout",
                about=name,
                text=f"session.timeout.ms={session} is below the brokers' group.min.session.timeout.ms={least}: "
                "the group lets it not join",
                repair=f"session.timeout.ms={least}",
            )
        most = _number(facts.broker_settings, "transaction.max.timeout.ms")
        wanted = _number(client, "transaction.timeout.ms")
        if 0 < most < wanted:
            yield Finding(
                severity=Severity.STOPS,
                rule="transaction timeout",
                about=name,
                text=f"transaction.timeout.ms={wanted} is above the brokers' transaction.max.timeout.ms={most}",
                repair=f"transaction.timeout.ms={most}",
            )
        if "group.id" in client and client.get("auto.offset.reset", "latest") in {"latest", "largest", "end"}:
            yield Finding(
                severity=Severity.NOTE,
                rule="first offset",
                about=name,
                text="auto.offset.reset=latest: a new group, and one whose offsets have expired, passes over what is "
                "there",
                repair="auto.offset.reset=earliest, or none to get an error",
            )


def _few_partitions(facts: Facts) -> Iterator[Finding]:
    for topic in facts.topics:
        load = facts.loads.get(topic.name, TopicLoad())
        advised = advised_partitions(
            brokers=facts.brokers, consumers=load.consumers, bytes_per_second=load.bytes_per_second
        )
        whys = []
        if topic.partitions < facts.brokers:
            whys.append(f"for {facts.brokers} brokers: the others lead none of it")
        if topic.partitions < load.consumers:
            whys.append(f"for the {load.consumers} members of group {load.group}: the others read nothing")
        if topic.partitions * BYTES_PER_SECOND < load.bytes_per_second:
            whys.append(f"for {load.bytes_per_second / 1e6:.0f} MB a second")
        if topic.partitions and whys:
            yield Finding(
                severity=Severity.NOTE,
                rule="few partitions",
                about=f"topic {topic.name}",
                text=f"has {topic.partitions} partitions {', and '.join(whys)}; partitions that are added later take "
                "over keys of those that are there",
                repair=f"make it with {advised} partitions, or a multiple if more consumers of a group are to read",
            )


def _retention(facts: Facts) -> Iterator[Finding]:
    for table in facts.tables:
        if table.lost:
            yield Finding(
                severity=Severity.LOSES,
                rule="retention",
                about=f"table {table.name}",
                text=f"has not read {table.lost} records that topic {table.topic} has deleted",
                repair=f"a longer retention.ms or retention.bytes of topic {table.topic}, and runs more often",
            )
        if table.old:
            yield Finding(
                severity=Severity.LOSES,
                rule="retention",
                about=f"table {table.name}",
                text=f"has not read {table.old} records that are older than half of the retention.ms of topic "
                f"{table.topic}, and will be deleted",
                repair=f"fluvial run {table.name}, more often, or a longer retention.ms",
            )


def _disks(facts: Facts) -> Iterator[Finding]:
    for broker, disk in sorted(facts.disks.items()):
        for directory in disk.failed:
            yield Finding(
                severity=Severity.STOPS,
                rule="failed disk",
                about=f"broker {broker}",
                text=f"{directory} has failed: its partitions take no records",
                repair="repair the disk and start the broker again",
            )
        if disk.total_bytes and disk.usable_bytes is not None and disk.usable_bytes < DISK_FREE_MIN * disk.total_bytes:
            yield Finding(
                severity=Severity.STOPS,
                rule="full disk",
                about=f"broker {broker}",
                text=f"has {100 * disk.usable_bytes // disk.total_bytes} % of its disk left: on a full one it takes no "
                "records",
                repair="a larger disk, fewer partitions on it, or a shorter retention",
            )


def _clocks(facts: Facts) -> Iterator[Finding]:
    for address, seconds in sorted(facts.clocks.items()):
        if abs(seconds) > CLOCK_SECONDS_MAX:
            yield Finding(
                severity=Severity.CONTRADICTS,
                rule="clocks",
                about=address,
                text=f"its clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'after'} this machine's: the "
                "times of records, retention and hours of tables go by it",
                repair="keep the clocks of all machines by NTP",
            )


def _versions(facts: Facts) -> Iterator[Finding]:
    if not facts.supported:
        return
    lowest, highest = min(facts.supported.values()), max(facts.supported.values())
    older = [str(broker) for broker, level in sorted(facts.supported.items()) if level < highest]
    if older:
        yield Finding(
            severity=Severity.CONTRADICTS,
            rule="versions",
            about="brokers",
            text=f"{', '.join(older)} run an older release than the others",
            repair="complete the rolling upgrade",
        )
    elif 0 < facts.level < lowest:
        yield Finding(
            severity=Severity.NOTE,
            rule="versions",
            about="cluster",
            text=f"is at metadata.version {facts.level}, and all brokers support {lowest}",
            repair="fluvial cluster features upgrade",
        )


RULES: tuple[Rule, ...] = (
    _one_copy,
    _single_copy_acknowledged,
    _no_copy_to_spare,
    _unclean,
    _not_synced,
    _one_copy_by_default,
    _too_many_partitions,
    _acks,
    _retries,
    _consumers,
    _few_partitions,
    _retention,
    _disks,
    _clocks,
    _versions,
)


def counts(findings: Iterable[Finding]) -> Counter[Severity]:
    """Return how many findings there are of each severity."""
    return Counter(finding.severity for finding in findings)
