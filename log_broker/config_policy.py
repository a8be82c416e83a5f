"""What the cluster demands of topics, whoever makes them; the same on every node, it may be changed while it runs."""

from log_broker.config_keys import int_key

REPLICATION_FACTOR_MIN = "fluvial.replication.factor.min"

POLICY_KEYS = (
    int_key(
        REPLICATION_FACTOR_MIN,
        1,
        "The fewest replicas that a new topic may have, and to which a reassignment may lower it; 1 is no limit.",
        least=1,
    ),
)
