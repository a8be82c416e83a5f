"""
Settings of topics and brokers, each declared once: name, type, default, bounds and what it does.

Names and defaults are Kafka's (https://kafka.apache.org/documentation/#topicconfigs and #brokerconfigs) except where
ours are safer; those that start with `fluvial.` are our own. A config is checked when it is built, so code that holds
a `TopicConfig` or a `BrokerConfig` never meets an unusable value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from log_broker.config.contracts import CONTRACT_KEYS, TOPIC_ALIASES
from log_broker.config.keys import DAY_MS, HOUR_MS, INT_MAX, LONG_MAX, MINUTE_MS, ConfigKey, ConfigType
from log_broker.config.keys import flag_key as _flag
from log_broker.config.keys import int_key as _int
from log_broker.config.keys import long_key as _long
from log_broker.config.keys import ratio_key as _ratio
from log_broker.config.keys import word_key as _word
from log_broker.config.leaders import LEADER_KEYS, LeadersPreference
from log_broker.config.policy import POLICY_KEYS
from log_broker.config.quorum import QUORUM_KEYS
from log_broker.config.registry import REGISTRY_KEYS
from log_broker.errors import BrokerError, ErrorCode

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
DURABILITY_LEVELS = ("memory", "fsync-leader", "fsync-quorum")
REPLICATION_FACTOR_USUAL = 3  # as many survive the loss of one while another one is being upgraded

_TOPIC_KEYS = (
    ConfigKey(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        doc="What happens to old records: delete drops them by age and size, compact keeps the last value of a key.",
        choices=("delete", "compact"),
    ),
    _word(
        "compression.type",
        "producer",
        "The codec of stored batches; producer keeps each batch as it was sent.",
        "producer",
        "uncompressed",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    ),
    _int(
        "compression.gzip.level", -1, "The gzip level of batches that the broker compresses; -1 is 6.", least=-1, most=9
    ),
    _int("compression.lz4.level", 9, "The lz4 level of batches that the broker compresses.", least=1, most=17),
    _int("compression.zstd.level", 3, "The zstd level of batches that the broker compresses.", least=-131_072, most=22),
    _long("delete.retention.ms", DAY_MS, "How long a compacted topic keeps tombstones."),
    _long("file.delete.delay.ms", 60_000, "How long a file stays on disk after its segment left the log."),
    _long("flush.messages", LONG_MAX, "Sync the log to disk whenever so many records are unsynced.", least=1),
    _long("flush.ms", LONG_MAX, "Sync the log to disk when its oldest unsynced record is so old."),
    _int("index.interval.bytes", 4096, "Bytes of log between two entries of the offset index."),
    _int("max.message.bytes", 1_048_588, "The largest record batch that is accepted, as it stands on the wire."),
    _long("max.compaction.lag.ms", LONG_MAX, "The longest time a record may stay uncompacted.", least=1),
    _long("min.compaction.lag.ms", 0, "The shortest time a record stays uncompacted."),
    _ratio("min.cleanable.dirty.ratio", 0.5, "The share of uncompacted bytes at which a log is compacted."),
    ConfigKey(
        name="leader.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        doc="Replicas to which leaders send no faster than the broker's rate: partition:broker, or * for all.",
    ),
    ConfigKey(
        name="follower.replication.throttled.replicas",
        type=ConfigType.LIST,
        default="",
        doc="Replicas that fetch no faster than the broker's rate: partition:broker, or * for all.",
    ),
    _int(
        "min.insync.replicas",
        2,
        "The fewest in-sync replicas with which acks=all succeeds; where a topic has fewer replicas, all of them.",
        least=1,
        kafka_default="1",
    ),
    _long("message.timestamp.after.max.ms", HOUR_MS, "How far a timestamp may lie ahead of the broker's clock."),
    _long("message.timestamp.before.max.ms", LONG_MAX, "How far a timestamp may lie behind the broker's clock."),
    _word(
        "message.timestamp.type",
        "CreateTime",
        "Whether records keep the producer's time or get the time of the append.",
        "CreateTime",
        "LogAppendTime",
    ),
    _flag(
        "preallocate", False, "Taken for compatibility and without effect: a segment file is as long as what is in it."
    ),
    _long("retention.bytes", -1, "The size beyond which a partition drops old segments; -1 is no limit.", least=-1),
    _long("retention.ms", 7 * DAY_MS, "The age at which a partition drops segments; -1 keeps them.", least=-1),
    _int("segment.bytes", 1 << 30, "The size at which a segment file is closed.", least=14),
    _int("segment.index.bytes", 10 << 20, "The largest size of an index file.", least=4),
    _long("segment.jitter.ms", 0, "The largest random delay that is taken off segment.ms."),
    _long("segment.ms", 7 * DAY_MS, "The age at which a segment file is closed although it is not full.", least=1),
    _flag("unclean.leader.election.enable", False, "Whether a replica that is out of sync may lead, losing records."),
    _word(
        "fluvial.durability",
        "fsync-quorum",
        "What an acknowledged record has survived: memory of the replicas, the leader's disk, or every in-sync disk.",
        *DURABILITY_LEVELS,
    ),
    *LEADER_KEYS,
    *CONTRACT_KEYS,
)
TOPIC_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _TOPIC_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings that hold for one topic: its own overrides on top of the defaults. Times in ms, sizes in bytes."""

    cleanup_policy: frozenset[str]
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    max_compaction_lag_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    leader_replication_throttled_replicas: frozenset[str]
    follower_replication_throttled_replicas: frozenset[str]
    min_insync_replicas: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    fluvial_durability: str
    fluvial_leaders_preference: LeadersPreference
    fluvial_key_schema_validation: str
    fluvial_value_schema_validation: str
    fluvial_schema_violation: str
    confluent_key_subject_name_strategy: str
    confluent_value_subject_name_strategy: str

    @property
    def segment_ms_max(self) -> int:
        """How long a segment is written to: compaction, which leaves the active one alone, must not wait for longer."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_level(self) -> int:
        """The level of the codec that `compression.type` names; meaningless for those without levels."""
        levels = {"gzip": self.compression_gzip_level, "lz4": self.compression_lz4_level}
        return levels.get(self.compression_type, self.compression_zstd_level)

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @classmethod
    def from_overrides(cls, overrides: Mapping[str, str], broker: "BrokerConfig | None" = None) -> Self:
        """
        Build the config of a topic from what was set on it.

        Raises BrokerError(INVALID_CONFIG) naming the setting, the value and what is allowed.
        """
        texts = {key.name: key.default for key in _TOPIC_KEYS}
        if broker is not None:
            texts.update(broker.topic_defaults)
        texts.update(canonical_overrides(overrides))
        return cls(**{TOPIC_KEYS[name].attribute: TOPIC_KEYS[name].parse(text) for name, text in texts.items()})

    def check(self) -> None:
        """
        Raise BrokerError(INVALID_CONFIG) for settings that are sound one by one and make no sense together.

        Asked where somebody changes them, not where they are read back: a default that moved must stop no start.
        """
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is larger than "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})",
            )


def canonical_name(name: str, text: str | None) -> tuple[str, str | None]:
    """Replace an alias by what it stands for; raises BrokerError(INVALID_CONFIG) for an unknown name."""
    if name in TOPIC_ALIASES:
        return TOPIC_ALIASES[name], None if text is None else ("id" if _parse_alias(name, text) else "none")
    if name not in TOPIC_KEYS:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    return name, text


def canonical_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """Replace every alias; raises BrokerError(INVALID_CONFIG) for an unknown name."""
    pairs = (canonical_name(name, text) for name, text in overrides.items())
    return {name: text for name, text in pairs if text is not None}


def _parse_alias(name: str, text: str) -> bool:
    return bool(_flag(name, False, "").parse(text))


# The broker's own names for the default of a topic setting, where Kafka has one.
_BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


def broker_name(topic_key: str) -> str:
    """Return the broker setting that holds the default of a topic setting; our own have the same name in both."""
    return _BROKER_NAMES.get(topic_key, topic_key)


# Kafka's names for settings in other units -> (name, ms in the unit), the coarsest first: the finest one given holds.
BROKER_ALIASES: Mapping[str, tuple[str, int]] = {
    "log.retention.hours": ("log.retention.ms", HOUR_MS),
    "log.retention.minutes": ("log.retention.ms", MINUTE_MS),
    "log.roll.hours": ("log.roll.ms", HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", HOUR_MS),
}


def canonical_broker_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """
    Replace names in other units by those in ms, which win over them where both are given.

    Raises BrokerError(INVALID_CONFIG) for a value that is no number.
    """
    given = {name: text for name, text in settings.items() if name not in BROKER_ALIASES}
    for alias, (name, unit_ms) in reversed(list(BROKER_ALIASES.items())):
        if alias in settings and name not in given:
            given[name] = in_ms(alias, settings[alias], unit_ms)
    return given


def in_ms(alias: str, text: str, unit_ms: int) -> str:
    """Return the text in ms of a setting in another unit; -1 is no limit in every unit."""
    number = _long(alias, 0, "", least=-1, most=LONG_MAX // unit_ms).parse(text)
    return str(number if number < 0 else number * unit_ms)


TOPIC_KEY_OF_BROKER_NAME: Mapping[str, str] = {broker_name(name): name for name in TOPIC_KEYS}

_BROKER_KEYS = (
    *QUORUM_KEYS,
    *REGISTRY_KEYS,
    *POLICY_KEYS,
    _int("num.partitions", 1, "Partitions of a topic that is made without saying how many.", least=1, most=100_000),
    _int(
        "default.replication.factor",
        -1,
        "Replicas of a topic that is made without saying how many; -1 is three, or fewer if the cluster is configured"
        " to be smaller.",
        least=-1,
        kafka_default="1",
    ),
    _flag(
        "auto.leader.rebalance.enable", True, "Whether leaderships are given back to preferred leaders by themselves."
    ),
    _int("leader.imbalance.check.interval.seconds", 300, "How often it is looked for such leaderships.", least=1),
    _int(
        "leader.imbalance.per.broker.percentage",
        10,
        "The share of the partitions that a broker should lead, in percent, that others may lead before it is.",
    ),
    _flag("auto.create.topics.enable", True, "Whether a topic is made when a client asks for one that is not there."),
    _flag("delete.topic.enable", True, "Whether topics can be deleted."),
    _int(
        "offsets.topic.num.partitions",
        50,
        "Partitions of the topic that holds committed offsets, when that is made.",
        least=1,
        read_only=True,
    ),
    _int(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "How long offsets are kept that no member of their group reads on from.",
        least=1,
    ),
    _long(
        "offsets.retention.check.interval.ms", 600_000, "How often offsets are looked at that may be too old.", least=1
    ),
    _int("offset.metadata.max.bytes", 4096, "The longest text a consumer may store with an offset."),
    _int("group.min.session.timeout.ms", 6_000, "The shortest session timeout a group member may ask for."),
    _int("group.max.session.timeout.ms", 1_800_000, "The longest session timeout a group member may ask for."),
    _int(
        "group.initial.rebalance.delay.ms",
        0,
        "How long a new group waits for more members before its first round.",
        kafka_default="3000",
    ),
    _int("group.max.size", INT_MAX, "The most members a classic group may have.", least=1),
    _int(
        "group.consumer.session.timeout.ms",
        45_000,
        "How long a member of a KIP-848 group may be silent before it is taken out.",
        least=1,
    ),
    _int("group.consumer.min.session.timeout.ms", 45_000, "The least consumer.session.timeout.ms of a group.", least=1),
    _int("group.consumer.max.session.timeout.ms", 60_000, "The most consumer.session.timeout.ms of a group.", least=1),
    _int(
        "group.consumer.heartbeat.interval.ms",
        5_000,
        "How often a member of a KIP-848 group is to be heard of.",
        least=1,
    ),
    _int(
        "group.consumer.min.heartbeat.interval.ms",
        5_000,
        "The least consumer.heartbeat.interval.ms of a group.",
        least=1,
    ),
    _int(
        "group.consumer.max.heartbeat.interval.ms",
        15_000,
        "The most consumer.heartbeat.interval.ms of a group.",
        least=1,
    ),
    _int("group.consumer.max.size", INT_MAX, "The most members a KIP-848 group may have.", least=1),
    ConfigKey(
        name="group.consumer.assignors",
        type=ConfigType.LIST,
        default="uniform,range",
        doc="The assignors that members may ask for; uniform is the default one where it is among them.",
        choices=("uniform", "range"),
    ),
    _word(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which groups change their kind while they have members: classic ones to KIP-848, back, both or none.",
        "disabled",
        "upgrade",
        "downgrade",
        "bidirectional",
    ),
    _int("transaction.max.timeout.ms", 900_000, "The longest transaction timeout a producer may ask for.", least=1),
    _int("transaction.state.log.num.partitions", 50, "Partitions of the topic that holds transactions.", least=1),
    _int("transactional.id.expiration.ms", 7 * DAY_MS, "How long an unused transactional id is remembered.", least=1),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often transactional ids that nobody uses any more are looked for.",
        least=1,
    ),
    _long("log.retention.check.interval.ms", 300_000, "How often retention looks for what may go.", least=1),
    _long(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often it is written down how far each log is on the disk and where it starts.",
        least=1,
    ),
    _long(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often it is written down up to where each log is known to be on all in-sync replicas.",
        least=1,
    ),
    _int(
        "replica.lag.time.max.ms",
        30_000,
        "A follower that has not had all its leader had for so long leaves the in-sync replicas.",
        least=1,
        read_only=True,
    ),
    _long(
        "producer.id.expiration.ms",
        DAY_MS,
        "How long a silent idempotent producer is remembered, by the broker's clock.",
        least=1,
    ),
    _int(
        "num.recovery.threads.per.data.dir", 2, "Threads that open and recover logs at start.", least=1, read_only=True
    ),
    _int("fetch.max.bytes", 55 << 20, "The most bytes of records in one fetch response.", least=1024),
    _flag("log.cleaner.enable", True, "Whether compacted topics are compacted in the background."),
    _long("log.cleaner.backoff.ms", 15_000, "How long the compactor sleeps between two rounds.", least=1),
    _long(
        "log.cleaner.dedupe.buffer.size",
        128 << 20,
        "The memory for the keys of one pass of compaction; a log with more keys takes several passes.",
        least=1 << 16,
    ),
    _int("socket.request.max.bytes", 100 << 20, "The largest request that is read.", least=1),
    _long("connections.max.idle.ms", 600_000, "A connection that is silent for so long is closed.", least=1),
    _int(
        "max.connections",
        10_000,
        "The most connections that are open at once; more are closed as they come.",
        kafka_default=str(INT_MAX),
    ),
    _int("max.connections.per.ip", INT_MAX, "The most connections that one address may have open at once."),
    _long(
        "queued.max.request.bytes",
        512 << 20,
        "Bytes of requests and answers in memory beyond which no more requests are read, 64 KiB of each connection"
        " left out; -1 is no limit.",
        least=-1,
        kafka_default="-1",
    ),
    _int("replica.fetch.max.bytes", 1 << 20, "The most bytes that a replica fetches of one partition at once."),
    _int("replica.fetch.response.max.bytes", 10 << 20, "The most bytes that a replica fetches at once."),
    _int("replica.fetch.min.bytes", 1, "The fewest bytes for which a leader answers a replica before its time is up."),
    _int("replica.fetch.wait.max.ms", 500, "How long a leader lets a replica wait for more."),
    _int("replica.fetch.backoff.ms", 1000, "The longest pause before a partition is fetched again after an error."),
    _int(
        "replica.socket.timeout.ms",
        5_000,
        "A leader that owes an answer and sends nothing for so long is connected to again.",
        least=1,
        kafka_default="30000",
    ),
    _word(
        "replica.selector.class",
        "",
        "What chooses the replica that a consumer is to read from; without one that is the leader.",
        "",
        RACK_AWARE_SELECTOR,
    ),
    _long(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that this broker sends of throttled replicas that are not in sync.",
    ),
    _long(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that this broker fetches of throttled replicas that are not in sync.",
    ),
    _int("max.incremental.fetch.session.cache.slots", 1000, "The most fetch sessions that are kept at once."),
)
BROKER_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _BROKER_KEYS}
# What a broker is given when it starts, and reports under these names.
FIXED_BROKER_NAMES = ("node.id", "broker.id", "log.dirs", "listeners", "advertised.listeners")

# Settings of one KIP-848 group; where it has none of its own, the broker's `group.` setting of the same name holds.
_GROUP_KEYS = (
    _int("consumer.session.timeout.ms", 45_000, "How long a member may be silent before it is taken out.", least=1),
    _int("consumer.heartbeat.interval.ms", 5_000, "How often a member is to be heard of.", least=1),
)
GROUP_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _GROUP_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker process. `data_dir` belongs to this process alone; port 0 takes any free one."""

    data_dir: Path
    node_id: int = 0
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    cluster_id: str | None = None
    process_roles: frozenset[str] = frozenset({"broker", "controller"})
    controller_quorum_voters: frozenset[str] = frozenset()
    controller_quorum_bootstrap_servers: frozenset[str] = frozenset()
    broker_rack: str = ""
    broker_heartbeat_interval_ms: int = 2_000
    broker_session_timeout_ms: int = 9_000
    controller_quorum_election_timeout_ms: int = 1_000
    controller_quorum_election_backoff_max_ms: int = 1_000
    controller_quorum_fetch_timeout_ms: int = 2_000
    controller_quorum_request_timeout_ms: int = 2_000
    fluvial_metadata_snapshot_entries: int = 10_000
    num_partitions: int = 1
    default_replication_factor: int = -1
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    offsets_topic_num_partitions: int = 50
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 0
    group_max_size: int = INT_MAX
    transaction_max_timeout_ms: int = 900_000
    transaction_state_log_num_partitions: int = 50
    transactional_id_expiration_ms: int = 7 * DAY_MS
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = INT_MAX
    group_consumer_assignors: frozenset[str] = frozenset({"uniform", "range"})
    group_consumer_migration_policy: str = "bidirectional"
    log_retention_check_interval_ms: int = 300_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    replica_lag_time_max_ms: int = 30_000
    producer_id_expiration_ms: int = DAY_MS
    num_recovery_threads_per_data_dir: int = 2
    log_cleaner_enable: bool = True
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 128 << 20
    socket_request_max_bytes: int = 100 << 20
    connections_max_idle_ms: int = 600_000
    max_connections: int = 10_000
    max_connections_per_ip: int = INT_MAX
    queued_max_request_bytes: int = 512 << 20
    fetch_max_bytes: int = 55 << 20
    replica_fetch_max_bytes: int = 1 << 20
    replica_fetch_response_max_bytes: int = 10 << 20
    replica_fetch_min_bytes: int = 1
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1000
    replica_socket_timeout_ms: int = 5_000
    replica_selector_class: str = ""
    leader_replication_throttled_rate: int = LONG_MAX
    follower_replication_throttled_rate: int = LONG_MAX
    max_incremental_fetch_session_cache_slots: int = 1000
    fluvial_replication_factor_min: int = 1
    fluvial_event_loop_lag_warn_ms: int = 500
    fluvial_registry_unowned: str = "open"
    fluvial_registry_admins: frozenset[str] = frozenset()
    fluvial_registry_request_max_bytes: int = 1024 * 1024
    fluvial_http_allowed_hosts: frozenset[str] = frozenset()
    access_control_allow_origin: frozenset[str] = frozenset()
    access_control_allow_methods: frozenset[str] = frozenset()
    access_control_allow_headers: frozenset[str] = frozenset()
    topic_defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def cluster_size(self) -> int:
        """How many brokers the cluster is configured to have at least, whether they are up or not."""
        return max(1, len(self.controller_quorum_voters))

    @property
    def replication_factor(self) -> int:
        """How many replicas a topic has that is made without saying how many."""
        wanted = self.default_replication_factor
        return min(REPLICATION_FACTOR_USUAL, self.cluster_size) if wanted < 0 else wanted

    def with_settings(self, settings: Mapping[str, str]) -> Self:
        """
        Return this config with settings given by Kafka's names, topic defaults (`log.retention.ms`) among them.

        Raises BrokerError(INVALID_CONFIG) naming the setting, the value and what is allowed.
        """
        changes: dict[str, Any] = {}
        defaults = dict(self.topic_defaults)
        for name, text in canonical_broker_settings(settings).items():
            if name in BROKER_KEYS:
                changes[BROKER_KEYS[name].attribute] = BROKER_KEYS[name].parse(text)
            elif (topic_key := TOPIC_KEY_OF_BROKER_NAME.get(name)) is not None:
                TOPIC_KEYS[topic_key].parse(text)
                defaults[topic_key] = text
            else:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        return replace(self, topic_defaults=defaults, **changes)
