"""
What can be known before a run without data and without Spark: topics, contracts, and what tables were built with.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from fluvial.delta.log import TableLog
from fluvial.delta.stamp import read_position
from fluvial.errors import FluvialError
from fluvial.kafka import KafkaCluster
from fluvial.kafka.admin import admin_of, describe_cluster
from fluvial.registry.errors import RegistryError
from fluvial.spark.avro import Contract, read_contract
from fluvial.spark.kafka import TopicError, absent
from fluvial.spark.warehouse import Warehouse
from fluvial.tables.declare.co_partitioning import check_topics
from fluvial.tables.declare.declarations import Declaration, Pipeline, Publication
from fluvial.tables.plan.checks import check_definition
from fluvial.tables.plan.fit import check_fit

if TYPE_CHECKING:
    from fluvial.config import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """
    What was found, by the tables' names.

    `problems` are the errors that runs would end with; `contracts` those of the other tables' topics, which a run is
    given so that it neither reads nor checks them again.
    """

    problems: Mapping[str, FluvialError]
    contracts: Mapping[str, Contract]


def look_ahead(
    chosen: Sequence[Declaration],
    declared: Mapping[str, Declaration],
    settings: "Settings",
    *,
    is_rebuild: bool = False,
) -> Preflight:
    """
    What a run of each table would meet, each topic's contract read once.

    A rebuild (`is_rebuild`) minds neither what a table was built with nor whether its files are whole.

    Raises TopicError where the cluster does not answer and RegistryError where the registry does not.
    """
    topics = describe_cluster(settings, admin_of(settings.cluster)).topics
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    problems: dict[str, FluvialError] = {}
    contracts: dict[str, Contract] = {}
    with settings.registry.client() as schemas:
        contract_of = cache(lambda topic: read_contract(schemas, topic))
        for each in chosen:
            try:
                contract = _check_source(each, declared, counts, settings.cluster, contract_of)
                if contract is None:
                    continue
                if not is_rebuild:
                    _check_table(each, contract, Warehouse.at(settings.warehouse))
                contracts[each.table] = contract
            except FluvialError as error:
                if isinstance(error, RegistryError) and error.code is None:  # it does not answer
                    raise
                problems[each.table] = error
    return Preflight(problems=problems, contracts=contracts)


def _check_source(
    declaration: Declaration,
    declared: Mapping[str, Declaration],
    partitions: Mapping[str, int],
    cluster: KafkaCluster,
    contract_of: Callable[[str], Contract],
) -> Contract | None:
    """Check what a declaration reads; returns the contract of its topic, where it reads one."""
    if isinstance(declaration, Publication):
        return None
    if isinstance(declaration, Pipeline):
        check_topics(declaration, declared, partitions)
        return None
    if declaration.topic not in partitions:
        raise TopicError(absent(declaration.topic, cluster, partitions))
    contract = contract_of(declaration.topic)
    check_fit(declaration, contract)
    return contract


def _check_table(declaration: Declaration, contract: Contract, warehouse: Warehouse) -> None:
    """A table elsewhere than on this machine is left to Spark."""
    if warehouse.local is None:
        return
    path = f"{warehouse.local}/{declaration.table.replace('.', '/')}"
    stamp = read_position(TableLog(None, path), declaration.table).stamp
    if stamp is not None:
        check_definition(declaration, stamp, contract)
