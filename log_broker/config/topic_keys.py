"""
The settings of topics, each declared once for both levels: a topic's own value and the broker's default for it.

Their names on both levels and their defaults are Kafka's (https://kafka.apache.org/documentation/#topicconfigs) except
where ours are safer; those that start with `fluvial.` are our own and are called the same on both.
"""

from collections.abc import Mapping

from log_broker.config.contracts import CONTRACT_KEYS
from log_broker.config.keys import DAY_MS, HOUR_MS, LONG_MAX, ConfigKey, ConfigType
from log_broker.config.keys import flag_key as _flag
from log_broker.config.keys import int_key as _int
from log_broker.config.keys import long_key as _long
from log_broker.config.keys import ratio_key as _ratio
from log_broker.config.keys import word_key as _word
from log_broker.config.leaders import LEADER_KEYS

DURABILITY_LEVELS = ("memory", "fsync-leader", "fsync-quorum")

_TOPIC_KEYS = (
    ConfigKey(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        doc="What happens to old records: delete drops them by age and size, compact keeps the last value of a key.",
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
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
    _long(
        "delete.retention.ms",
        DAY_MS,
        "How long a compacted topic keeps tombstones.",
        broker_name="log.cleaner.delete.retention.ms",
    ),
    _long(
        "file.delete.delay.ms",
        60_000,
        "How long a file stays on disk after its segment left the log.",
        broker_name="log.segment.delete.delay.ms",
    ),
    _long(
        "flush.messages",
        LONG_MAX,
        "Sync the log to disk whenever so many records are unsynced.",
        least=1,
        broker_name="log.flush.interval.messages",
    ),
    _long(
        "flush.ms",
        LONG_MAX,
        "Sync the log to disk when its oldest unsynced record is so old.",
        broker_name="log.flush.interval.ms",
    ),
    _int(
        "index.interval.bytes",
        4096,
        "Bytes of log between two entries of the offset index.",
        broker_name="log.index.interval.bytes",
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "The largest record batch that is accepted, as it stands on the wire.",
        broker_name="message.max.bytes",
    ),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "The longest time a record may stay uncompacted.",
        least=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "The shortest time a record stays uncompacted.",
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    _ratio(
        "min.cleanable.dirty.ratio",
        0.5,
        "The share of uncompacted bytes at which a log is compacted.",
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
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
    _long(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        "How far a timestamp may lie ahead of the broker's clock.",
        broker_name="log.message.timestamp.after.max.ms",
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a timestamp may lie behind the broker's clock.",
        broker_name="log.message.timestamp.before.max.ms",
    ),
    _word(
        "message.timestamp.type",
        "CreateTime",
        "Whether records keep the producer's time or get the time of the append.",
        "CreateTime",
        "LogAppendTime",
        broker_name="log.message.timestamp.type",
    ),
    _flag(
        "preallocate",
        False,
        "Taken for compatibility and without effect: a segment file is as long as what is in it.",
        broker_name="log.preallocate",
    ),
    _long(
        "retention.bytes",
        -1,
        "The size beyond which a partition drops old segments; -1 is no limit.",
        least=-1,
        broker_name="log.retention.bytes",
    ),
    _long(
        "retention.ms",
        7 * DAY_MS,
        "The age at which a partition drops segments; -1 keeps them.",
        least=-1,
        broker_name="log.retention.ms",
    ),
    _int(
        "segment.bytes",
        1 << 30,
        "The size at which a segment file is closed.",
        least=14,
        broker_name="log.segment.bytes",
    ),
    _int(
        "segment.index.bytes",
        10 << 20,
        "The largest size of an index file.",
        least=4,
        broker_name="log.index.size.max.bytes",
    ),
    _long(
        "segment.jitter.ms",
        0,
        "The largest random delay that is taken off segment.ms.",
        broker_name="log.roll.jitter.ms",
    ),
    _long(
        "segment.ms",
        7 * DAY_MS,
        "The age at which a segment file is closed although it is not full.",
        least=1,
        broker_name="log.roll.ms",
    ),
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


def broker_name(topic_key: str) -> str:
    """Return the broker setting that holds the default of a topic setting; our own have the same name in both."""
    return TOPIC_KEYS[topic_key].broker_name or topic_key


TOPIC_KEY_OF_BROKER_NAME: Mapping[str, str] = {broker_name(name): name for name in TOPIC_KEYS}
