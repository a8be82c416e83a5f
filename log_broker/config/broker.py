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

from log_broker.config.contracts import TOPIC_ALIASES
from log_broker.config.keys import DAY_MS, HOUR_MS, INT_MAX, LONG_MAX, MINUTE_MS, ConfigKey, ConfigType
from log_broker.config.keys import flag_key as _flag
from log_broker.config.keys import int_key as _int
from log_broker.config.keys import long_key as _long
from log_broker.config.keys import word_key as _word
from log_broker.config.leaders import LeadersPreference
from log_broker.config.policy import POLICY_KEYS
from log_broker.config.quorum import QUORUM_KEYS
from log_broker.config.registry import REGISTRY_KEYS
from log_broker.config.rights import RIGHTS_KEYS
from log_broker.config.security import SecuritySettings, setting_of
from log_broker.config.topic_keys import TOPIC_KEY_OF_BROKER_NAME, TOPIC_KEYS
from log_broker.errors import BrokerError, ErrorCode

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICATION_FACTOR_USUAL = 3  # as many survive the loss of one while another one is being upgraded


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
    fluvial_producers: str
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
        texts = {name: key.default for name, key in TOPIC_KEYS.items()}
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


_BROKER_KEYS = (
    *QUORUM_KEYS,
    *REGISTRY_KEYS,
    *POLICY_KEYS,
    *RIGHTS_KEYS,
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
GROUP_KEYS: Mapping[str, ConfigKey] = {
    name: replace(BROKER_KEYS[f"group.{name}"], name=name)
    for name in ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
}


def _default(name: str) -> Any:
    """The default of a broker's setting, typed."""
    return BROKER_KEYS[name].parse(BROKER_KEYS[name].default)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker process. `data_dir` belongs to this process alone; port 0 takes any free one."""

    data_dir: Path
    node_id: int = 0
    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    cluster_id: str | None = None
    process_roles: frozenset[str] = _default("process.roles")
    controller_quorum_voters: frozenset[str] = _default("controller.quorum.voters")
    controller_quorum_bootstrap_servers: frozenset[str] = _default("controller.quorum.bootstrap.servers")
    broker_rack: str = _default("broker.rack")
    broker_heartbeat_interval_ms: int = _default("broker.heartbeat.interval.ms")
    broker_session_timeout_ms: int = _default("broker.session.timeout.ms")
    controller_quorum_election_timeout_ms: int = _default("controller.quorum.election.timeout.ms")
    controller_quorum_election_backoff_max_ms: int = _default("controller.quorum.election.backoff.max.ms")
    controller_quorum_fetch_timeout_ms: int = _default("controller.quorum.fetch.timeout.ms")
    controller_quorum_request_timeout_ms: int = _default("controller.quorum.request.timeout.ms")
    fluvial_metadata_snapshot_entries: int = _default("fluvial.metadata.snapshot.entries")
    num_partitions: int = _default("num.partitions")
    default_replication_factor: int = _default("default.replication.factor")
    auto_leader_rebalance_enable: bool = _default("auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = _default("leader.imbalance.check.interval.seconds")
    leader_imbalance_per_broker_percentage: int = _default("leader.imbalance.per.broker.percentage")
    auto_create_topics_enable: bool = _default("auto.create.topics.enable")
    delete_topic_enable: bool = _default("delete.topic.enable")
    offsets_topic_num_partitions: int = _default("offsets.topic.num.partitions")
    offsets_retention_minutes: int = _default("offsets.retention.minutes")
    offsets_retention_check_interval_ms: int = _default("offsets.retention.check.interval.ms")
    offset_metadata_max_bytes: int = _default("offset.metadata.max.bytes")
    group_min_session_timeout_ms: int = _default("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = _default("group.max.session.timeout.ms")
    group_initial_rebalance_delay_ms: int = _default("group.initial.rebalance.delay.ms")
    group_max_size: int = _default("group.max.size")
    transaction_max_timeout_ms: int = _default("transaction.max.timeout.ms")
    transaction_state_log_num_partitions: int = _default("transaction.state.log.num.partitions")
    transactional_id_expiration_ms: int = _default("transactional.id.expiration.ms")
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _default(
        "transaction.remove.expired.transaction.cleanup.interval.ms"
    )
    group_consumer_session_timeout_ms: int = _default("group.consumer.session.timeout.ms")
    group_consumer_min_session_timeout_ms: int = _default("group.consumer.min.session.timeout.ms")
    group_consumer_max_session_timeout_ms: int = _default("group.consumer.max.session.timeout.ms")
    group_consumer_heartbeat_interval_ms: int = _default("group.consumer.heartbeat.interval.ms")
    group_consumer_min_heartbeat_interval_ms: int = _default("group.consumer.min.heartbeat.interval.ms")
    group_consumer_max_heartbeat_interval_ms: int = _default("group.consumer.max.heartbeat.interval.ms")
    group_consumer_max_size: int = _default("group.consumer.max.size")
    group_consumer_assignors: frozenset[str] = _default("group.consumer.assignors")
    group_consumer_migration_policy: str = _default("group.consumer.migration.policy")
    log_retention_check_interval_ms: int = _default("log.retention.check.interval.ms")
    log_flush_offset_checkpoint_interval_ms: int = _default("log.flush.offset.checkpoint.interval.ms")
    replica_high_watermark_checkpoint_interval_ms: int = _default("replica.high.watermark.checkpoint.interval.ms")
    replica_lag_time_max_ms: int = _default("replica.lag.time.max.ms")
    producer_id_expiration_ms: int = _default("producer.id.expiration.ms")
    num_recovery_threads_per_data_dir: int = _default("num.recovery.threads.per.data.dir")
    log_cleaner_enable: bool = _default("log.cleaner.enable")
    log_cleaner_backoff_ms: int = _default("log.cleaner.backoff.ms")
    log_cleaner_dedupe_buffer_size: int = _default("log.cleaner.dedupe.buffer.size")
    socket_request_max_bytes: int = _default("socket.request.max.bytes")
    connections_max_idle_ms: int = _default("connections.max.idle.ms")
    max_connections: int = _default("max.connections")
    max_connections_per_ip: int = _default("max.connections.per.ip")
    queued_max_request_bytes: int = _default("queued.max.request.bytes")
    fetch_max_bytes: int = _default("fetch.max.bytes")
    replica_fetch_max_bytes: int = _default("replica.fetch.max.bytes")
    replica_fetch_response_max_bytes: int = _default("replica.fetch.response.max.bytes")
    replica_fetch_min_bytes: int = _default("replica.fetch.min.bytes")
    replica_fetch_wait_max_ms: int = _default("replica.fetch.wait.max.ms")
    replica_fetch_backoff_ms: int = _default("replica.fetch.backoff.ms")
    replica_socket_timeout_ms: int = _default("replica.socket.timeout.ms")
    replica_selector_class: str = _default("replica.selector.class")
    leader_replication_throttled_rate: int = _default("leader.replication.throttled.rate")
    follower_replication_throttled_rate: int = _default("follower.replication.throttled.rate")
    max_incremental_fetch_session_cache_slots: int = _default("max.incremental.fetch.session.cache.slots")
    fluvial_replication_factor_min: int = _default("fluvial.replication.factor.min")
    fluvial_event_loop_lag_warn_ms: int = _default("fluvial.event.loop.lag.warn.ms")
    fluvial_registry_unowned: str = _default("fluvial.registry.unowned")
    fluvial_registry_admins: frozenset[str] = _default("fluvial.registry.admins")
    fluvial_registry_request_max_bytes: int = _default("fluvial.registry.request.max.bytes")
    fluvial_http_allowed_hosts: frozenset[str] = _default("fluvial.http.allowed.hosts")
    access_control_allow_origin: frozenset[str] = _default("access.control.allow.origin")
    access_control_allow_methods: frozenset[str] = _default("access.control.allow.methods")
    access_control_allow_headers: frozenset[str] = _default("access.control.allow.headers")
    authorizer_class_name: str = _default("authorizer.class.name")
    super_users: str = _default("super.users")
    fluvial_first_users: str = _default("fluvial.first.users")
    allow_everyone_if_no_acl_found: bool = _default("allow.everyone.if.no.acl.found")
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    security: SecuritySettings = field(default_factory=SecuritySettings)

    @property
    def cluster_size(self) -> int:
        """How many brokers the cluster is configured to have at least, whether they are up or not."""
        return max(1, len(self.controller_quorum_voters))

    @property
    def replication_factor(self) -> int:
        """How many replicas a topic has that is made without saying how many."""
        wanted = self.default_replication_factor
        return min(REPLICATION_FACTOR_USUAL, self.cluster_size) if wanted < 0 else wanted

    @property
    def memory_limit(self) -> int:
        """Bytes of requests and answers at most; a limit below the largest request would let that pass as well."""
        limit = self.queued_max_request_bytes
        return 1 << 62 if limit < 0 else max(limit, self.socket_request_max_bytes)

    def with_settings(self, settings: Mapping[str, str]) -> Self:
        """
        Return this config with settings given by Kafka's names, topic defaults (`log.retention.ms`) among them.

        Raises BrokerError(INVALID_CONFIG) naming the setting, the value and what is allowed.
        """
        changes: dict[str, Any] = {}
        defaults = dict(self.topic_defaults)
        security = {name: text for name, text in settings.items() if setting_of(name) is not None}
        settings = {name: text for name, text in settings.items() if name not in security}
        for name, text in canonical_broker_settings(settings).items():
            if name in BROKER_KEYS:
                changes[BROKER_KEYS[name].attribute] = BROKER_KEYS[name].parse(text)
            elif (topic_key := TOPIC_KEY_OF_BROKER_NAME.get(name)) is not None:
                TOPIC_KEYS[topic_key].parse(text)
                defaults[topic_key] = text
            else:
                raise BrokerError(ErrorCode.INVALID_CONFIG, f"Unknown broker config name: {name}")
        return replace(self, topic_defaults=defaults, security=self.security.with_texts(security), **changes)
