"""DescribeConfigs: of topics, of this broker and of consumer groups."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from log_broker.core.security.acls import Operation, ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.net.rights import Guarded, only
from log_broker.server.ops.config_reports import ReportHost, broker_entries, group_entries, topic_entries
from log_broker.server.process.turns import in_turns

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

TOPIC = 2
BROKER = 4
GROUP = 32
BROKER_LOGGER = 8
CLIENT_METRICS = 16
RESOURCES = {
    TOPIC: ResourceType.TOPIC,
    BROKER: ResourceType.CLUSTER,
    BROKER_LOGGER: ResourceType.CLUSTER,
    CLIENT_METRICS: ResourceType.CLUSTER,
    GROUP: ResourceType.GROUP,
}
RESOURCES_AT_ONCE_MAX = 25  # in one turn of the event loop; each takes some tenths of a millisecond


async def handle(node: ReportHost, context: "RequestContext", request: Any) -> "Values":
    """Answer one DescribeConfigs request."""
    results: list[Values] = []
    async for resources in in_turns(_once(request.resources), RESOURCES_AT_ONCE_MAX):
        results += _described(node, request, resources)
    return {"results": results}


def guard(node: object, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the resources whose settings may not be seen."""
    return guard_resources(rights, context, guarded, Operation.DESCRIBE_CONFIGS)


def guard_resources(rights: Rights, context: "RequestContext", guarded: Guarded, operation: Operation) -> Guarded:
    """Take out the resources that an operation on their settings is not allowed on."""
    api = context.header.api_key, context.version
    for number, resource in RESOURCES.items():

        def is_allowed(entry: Any, number: int = number, resource: ResourceType = resource) -> bool:
            if entry.resource_type != number:
                return True
            if resource is ResourceType.CLUSTER:
                return rights.may_cluster(operation)
            return rights.may(operation, resource, entry.resource_name)

        guarded = only(api, guarded, "resources", is_allowed, resource)
    return guarded


def _described(node: ReportHost, request: Any, resources: "Sequence[Any]") -> "list[Values]":
    with_docs = getattr(request, "include_documentation", False)
    results: list[Values] = []
    for resource in resources:
        error, message, entries = ErrorCode.NONE, None, []
        try:
            entries = _entries(node, resource)
        except BrokerError as failure:
            error, message = failure.code, str(failure)
        hidden: dict[str, Any] = {}
        if not request.include_synonyms:
            hidden["synonyms"] = ()
        if not with_docs:
            hidden["documentation"] = None
        results.append(
            {
                "error_code": error,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [{**entry, **hidden} for entry in entries],
            }
        )
    return results


def _once(resources: "Iterable[Any]") -> "Sequence[Any]":
    """Leave out what is named again: a few bytes would have a hundred settings answered."""
    named = ((each.resource_type, each.resource_name, each.configuration_keys) for each in resources)
    return tuple(dict(zip(named, resources, strict=True)).values())


def _entries(node: ReportHost, resource: Any) -> "list[Values]":
    names = resource.configuration_keys or None
    if resource.resource_type == TOPIC:
        topic = node.cluster.topics.get(resource.resource_name)
        if topic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist."
            )
        return topic_entries(node, topic, names=names)
    if resource.resource_type == BROKER:
        if resource.resource_name not in {"", str(node.config.node_id)}:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"This is broker {node.config.node_id}, and broker '{resource.resource_name}' was asked about.",
            )
        return broker_entries(node, names=names)
    if resource.resource_type == GROUP:
        return group_entries(node, resource.resource_name, names=names)
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource.resource_type} have no configs here.")
