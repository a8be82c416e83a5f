"""The settings of who may do what, by Kafka's names (https://kafka.apache.org/documentation/#security_authz)."""

from log_broker.config.keys import ConfigKey, ConfigType

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

RIGHTS_KEYS = (
    ConfigKey(
        name="authorizer.class.name",
        type=ConfigType.STRING,
        default="",
        doc="What decides who may do what: `fluvial`, which Kafka's name for it stands for as well, by the ACLs of the"
        " cluster; empty lets everybody do everything.",
        choices=("", "fluvial", STANDARD_AUTHORIZER),
        read_only=True,
    ),
    ConfigKey(
        name="super.users",
        type=ConfigType.STRING,
        default="",
        doc="Who may do everything without an ACL, each `User:name`, with semicolons between; nodes among them.",
        read_only=True,
    ),
    ConfigKey(
        name="fluvial.first.users",
        type=ConfigType.STRING,
        default="",
        doc="A file with the users that a new cluster begins with, a line each, as Kafka's `--add-scram` has them:"
        " `SCRAM-SHA-512=[name=admin,password=…]`.",
        read_only=True,
    ),
    ConfigKey(
        name="allow.everyone.if.no.acl.found",
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether everybody may do everything with what no ACL is about.",
        read_only=True,
    ),
)
