"""The settings of the schema registry beside a broker; the same on every node, they may be changed while it runs."""

from log_broker.config.keys import ConfigKey, ConfigType, int_key, word_key

REGISTRY_KEYS = (
    word_key(
        "fluvial.registry.unowned",
        "open",
        "Whether a subject that no producer owns takes schemas from anyone (open), or from nobody (deny).",
        "open",
        "deny",
    ),
    ConfigKey(
        name="fluvial.registry.admins",
        type=ConfigType.LIST,
        default="",
        doc="Producers of the schema registry that act for every owner. Where there are any, they alone introduce"
        " producers and change what holds for all subjects.",
    ),
    int_key(
        "fluvial.registry.request.max.bytes",
        1024 * 1024,
        "How large a request to the schema registry may be.",
        least=1024,
        most=16 * 1024 * 1024,
    ),
    ConfigKey(
        name="fluvial.http.allowed.hosts",
        type=ConfigType.LIST,
        default="",
        doc="Names under which the schema registry and the metrics are asked, besides addresses, names without a dot"
        " and the advertised one. A node that listens on localhost alone turns down every other name, as any node does"
        " where names are given: a page of another site could lead its own name here.",
    ),
    ConfigKey(
        name="access.control.allow.origin",
        type=ConfigType.LIST,
        default="",
        doc="Origins whose pages a browser lets use the schema registry, or * for every page; empty for none.",
    ),
    ConfigKey(
        name="access.control.allow.methods",
        type=ConfigType.LIST,
        default="",
        doc="What those pages may do; empty for GET, POST and HEAD.",
    ),
    ConfigKey(
        name="access.control.allow.headers",
        type=ConfigType.LIST,
        default="",
        doc="The request headers those pages may send; empty for X-Requested-With, Content-Type, Accept and Origin.",
    ),
)
