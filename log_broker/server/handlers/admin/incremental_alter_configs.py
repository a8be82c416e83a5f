"""IncrementalAlterConfigs: set, delete, append and subtract single settings of topics and brokers, live."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from log_broker.core.cluster.controller import Alteration, configure_brokers, configure_group, configure_topic
from log_broker.core.cluster.elections import reconfigured
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import MetadataRecord
from log_broker.core.security.acls import Operation as Right
from log_broker.core.security.acls import ResourceType
from log_broker.core.security.authorizer import Rights
from log_broker.errors import BrokerError, ErrorCode
from log_broker.server.handlers.admin.describe_configs import BROKER, GROUP, TOPIC, guard_resources
from log_broker.server.net.owners import HasOwners, may_configure
from log_broker.server.net.rights import Guarded, only
from log_broker.server.process.ports import Cluster
from log_broker.server.process.turns import in_turns
from log_broker.server.quorum.ports import HasAuthority

if TYPE_CHECKING:
    from log_broker.server.net.dispatch import RequestContext, Values

RESOURCES_AT_ONCE_MAX = 25  # in one turn of the event loop


class AlterHost(Cluster, HasAuthority, Protocol):
    """What is asked of the node here."""


async def handle(node: AlterHost, context: "RequestContext", request: Any) -> "Values":
    """Answer one IncrementalAlterConfigs request."""
    wanted = [
        (resource, [Alteration(entry.name, entry.config_operation, entry.value) for entry in resource.configs])
        for resource in request.resources
    ]
    return await alter(node, wanted, validate_only=request.validate_only)


def guard(node: HasOwners, rights: Rights, context: "RequestContext", guarded: Guarded) -> Guarded:
    """Take out the resources whose settings may not be changed."""
    guarded = guard_resources(rights, context, guarded, Right.ALTER_CONFIGS)

    def is_allowed(resource: Any) -> bool:
        names = {entry.name for entry in resource.configs}
        return resource.resource_type != TOPIC or may_configure(node, rights, resource.resource_name, names)

    return only((context.header.api_key, context.version), guarded, "resources", is_allowed, ResourceType.TOPIC)


async def alter(
    node: AlterHost, wanted: "Sequence[tuple[Any, Sequence[Alteration]]]", *, validate_only: bool
) -> "Values":
    """Carry out alterations of many resources; each is answered on its own."""
    answers: list[Values] = []

    def decide(some: "Sequence[tuple[Any, Sequence[Alteration]]]", image: ClusterImage) -> list[MetadataRecord]:
        records: list[MetadataRecord] = []
        for resource, alterations in some:
            answer = {
                "error_code": ErrorCode.NONE,
                "error_message": None,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
            try:
                before = image.draft()
                record = _decide_one(node, image, resource, alterations)
                image.replay(record)
                records.append(record)
                changes = reconfigured(before, image)
                for change in changes:
                    image.replay(change)
                records += changes
            except BrokerError as error:
                answer.update(error_code=error.code, error_message=str(error))
            answers.append(answer)
        return [] if validate_only else records

    async for some in in_turns(wanted, RESOURCES_AT_ONCE_MAX):
        await node.authority.submit(partial(decide, some))
    return {"responses": answers}


def _decide_one(
    node: AlterHost, image: ClusterImage, resource: Any, alterations: "Sequence[Alteration]"
) -> MetadataRecord:
    names = [alteration.name for alteration in alterations]
    if len(set(names)) < len(names):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if resource.resource_type == TOPIC:
        topic = image.topics.get(resource.resource_name)
        if topic is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist."
            )
        return configure_topic(image, topic, alterations)
    if resource.resource_type == BROKER:
        name = resource.resource_name
        if name and not (name.isdigit() and int(name) in image.brokers):
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"There is no broker '{name}'.")
        return configure_brokers(image, int(name) if name else None, alterations, node.static_config)
    if resource.resource_type == GROUP and resource.resource_name:
        return configure_group(image, resource.resource_name, alterations, node.config)
    raise BrokerError(ErrorCode.INVALID_REQUEST, f"Resources of type {resource.resource_type} have no configs here.")
