"""The settings of a node's part in the cluster: its roles, the metadata quorum, its standing with the controller."""

from log_broker.config.keys import ConfigKey, ConfigType, int_key, word_key

QUORUM_KEYS = (
    int_key(
        "fluvial.metadata.snapshot.entries",
        10_000,
        "Decisions behind the last snapshot of the metadata after which the next one is taken.",
        least=1,
        read_only=True,
    ),
    ConfigKey(
        name="process.roles",
        type=ConfigType.LIST,
        default="broker,controller",
        doc="What a node does: it leads partitions, it may decide about the cluster, or both.",
        choices=("broker", "controller"),
        read_only=True,
    ),
    ConfigKey(
        name="controller.quorum.voters",
        type=ConfigType.LIST,
        default="",
        doc="The nodes that elect the controller, each `id@host:port`; without any this node is alone.",
        read_only=True,
    ),
    ConfigKey(
        name="controller.quorum.bootstrap.servers",
        type=ConfigType.LIST,
        default="",
        doc="Where a node asks for the controller that is no voter, each `host:port`.",
        read_only=True,
    ),
    word_key("broker.rack", "", "Where the broker stands; replicas are spread over racks."),
    int_key(
        "broker.heartbeat.interval.ms", 2_000, "How often a broker tells the controller that it is alive.", least=1
    ),
    int_key(
        "broker.session.timeout.ms", 9_000, "A broker that was silent for so long leads nothing any more.", least=1
    ),
    int_key(
        "controller.quorum.election.timeout.ms",
        1_000,
        "How long a voter without a leader waits before it stands for election.",
        least=1,
        read_only=True,
    ),
    int_key(
        "controller.quorum.election.backoff.max.ms",
        1_000,
        "The longest a voter waits after an election that nobody won.",
        least=1,
        read_only=True,
    ),
    int_key(
        "controller.quorum.fetch.timeout.ms",
        2_000,
        "A leader of the quorum that is silent for so long is given up, by a voter that follows it and by itself.",
        least=1,
        read_only=True,
    ),
    int_key(
        "controller.quorum.request.timeout.ms",
        2_000,
        "How long a node of the quorum waits for another's answer.",
        least=1,
        read_only=True,
    ),
)
