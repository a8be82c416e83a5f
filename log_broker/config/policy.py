"""What a cluster demands of topics, whoever makes them, and of its nodes; it may be changed while they run."""

from log_broker.config.keys import int_key

REPLICATION_FACTOR_MIN = "fluvial.replication.factor.min"

POLICY_KEYS = (
    int_key(
        REPLICATION_FACTOR_MIN,
        1,
        "The fewest replicas that a new topic may have, and to which a reassignment may lower it; 1 is no limit.",
        least=1,
    ),
    int_key(
        "fluvial.event.loop.lag.warn.ms",
        500,
        "How late the event loop of a node may be before its log says so, and in a cluster the events too.",
        least=1,
    ),
)
