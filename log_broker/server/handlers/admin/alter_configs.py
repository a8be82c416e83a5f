"""AlterConfigs: replace all settings of a resource. Deprecated in Kafka, but older clients know no other way."""

from typing import TYPE_CHECKING, Any

from log_broker.config.broker import BROKER_ALIASES
from log_broker.config.contracts import TOPIC_ALIASES
from log_broker.core.cluster.controller import Alteration, Operation
from log_broker.core.security.acls import Operation as Right
from log_broker.core.security.acls import ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.server.handlers.admin.describe_configs import GROUP, TOPIC, guard_resources
from log_broker.server.handlers.admin.incremental_alter_configs import AlterHost, alter
from log_broker.server.net.owners import HasOwners, may_configure
from log_broker.server.net.rights import Guarded, only

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values


async def handle(node: AlterHost, context: "RequestContext", request: Any) -> "Values":
    """Answer one AlterConfigs request."""
    wanted = []
    for resource in request.resources:
        given = {entry.name: entry.value for entry in resource.configs}
        alterations = [Alteration(name, Operation.SET, value) for name, value in given.items()]
        kept = {_canonical(resource, name) for name in given}
        for name in _overridden(node, resource):
            if name not in kept:
                alterations.append(Alteration(name, Operation.DELETE, None))
        wanted.append((resource, alterations))
    return await alter(node, wanted, validate_only=request.validate_only)


def guard(node: HasOwners, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the resources whose settings may not be changed; what is not named goes back to its default."""
    guarded = guard_resources(rights, context, guarded, Right.ALTER_CONFIGS)

    def is_allowed(resource: Any) -> bool:
        return resource.resource_type != TOPIC or may_configure(node, rights, resource.resource_name, None)

    return only((context.header.api_key, context.version), guarded, "resources", is_allowed, ResourceType.TOPIC)


def _canonical(resource: Any, name: str) -> str:
    """Return the name under which a setting is kept."""
    if resource.resource_type == TOPIC:
        return TOPIC_ALIASES.get(name, name)
    return BROKER_ALIASES[name][0] if name in BROKER_ALIASES else name


def _overridden(node: AlterHost, resource: Any) -> list[str]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        topic = node.cluster.topics.get(name)
        return [] if topic is None else list(topic.overrides)
    if resource.resource_type == GROUP:
        return list(node.cluster.group_overrides.get(name, {}))
    return list(node.cluster.broker_overrides.get(int(name) if name.isdigit() else None, {}))
