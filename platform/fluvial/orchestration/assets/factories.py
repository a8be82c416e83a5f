"""
Assets one by one, for a code location that is written by hand.

    from fluvial.orchestration import SparkResource, history, pipeline, schema, state, topic

    orders = history("orders", policy=Policy(partitions=dg.HourlyPartitionsDefinition("2025-01-01-00:00")))
    customers = state("orders", "customer", fields={"orders": count(), "spent": sum_("amount")})

    @pipeline(inputs=["history.orders"], output="by_hour")
    def by_hour(orders):
        return orders.groupBy(F.hour("placed_at").alias("hour")).count()

Each is the asset of one of the declarations of `fluvial.tables`, and takes what they take. A project that keeps its
declarations in modules of their own, where `fluvial run` and `fluvial table verify` find them, maps them with
`assets_for`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from fluvial import tables as entities
from fluvial.orchestration.assets.assets import Runner, table_asset
from fluvial.orchestration.assets.graph import contract_spec, topic_spec
from fluvial.orchestration.assets.policies import Policy
from fluvial.registry.contracts import Contract
from fluvial.spark.warehouse import table_name_of
from fluvial.tables import DeclarationError, Fold
from fluvial.tables.declare.reducers import Reduce

USUAL = Policy()


def topic(name: str, *, contract: Contract | None = None, policy: Policy = USUAL) -> dg.AssetSpec:
    """Return the external asset of a topic, below the contract of its values where one is given."""
    return _with_policy(topic_spec(name, [contract] if contract else []), policy)


def schema(contract: Contract, *, policy: Policy = USUAL) -> dg.AssetSpec:
    """Return the external asset of a contract, with its columns and who answers for it."""
    return _with_policy(contract_spec(contract), policy)


def history(
    topic: str,
    *,
    name: str | None = None,
    contract: Contract | None = None,
    policy: Policy = USUAL,
    run: Runner | None = None,
) -> dg.AssetsDefinition:
    """Return the asset `history/<name>`: every event of `topic`, by time windows where the policy has partitions."""
    return table_asset(entities.history(topic, name=name), contract=contract, policy=policy, run=run)


def compacted(
    topic: str,
    *,
    name: str | None = None,
    key: str | None = None,
    contract: Contract | None = None,
    policy: Policy = USUAL,
    run: Runner | None = None,
) -> dg.AssetsDefinition:
    """Return the asset `compacted/<name>`: the latest event of each key of `topic`."""
    return table_asset(entities.compacted(topic, name=name, key=key), contract=contract, policy=policy, run=run)


def state(
    topic: str,
    key: str,
    *,
    fields: Mapping[str, Fold] | None = None,
    name: str | None = None,
    order: str | None = None,
    reduce: Reduce | None = None,
    returns: str | None = None,
    version: str | None = None,
    scd2: bool | str = False,
    contract: Contract | None = None,
    policy: Policy = USUAL,
    run: Runner | None = None,
) -> dg.AssetsDefinition:
    """Return the asset `state/<name>`: one row an entity, folded from the events of `topic`; named after it."""
    declared = entities.state(
        name or table_name_of(topic),
        topic=topic,
        key=key,
        fields=fields,
        order=order,
        reduce=reduce,
        returns=returns,
        version=version,
        scd2=scd2,
    )
    return table_asset(declared, contract=contract, policy=policy, run=run)


def pipeline(
    *,
    inputs: Sequence[str],
    output: str,
    version: str | None = None,
    policy: Policy = USUAL,
    run: Runner | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """
    Make the decorated transform the asset `marts/<output>`; it gets a DataFrame for each of `inputs`, in their order.

    `output` may be written as `marts.<name>` too. The function stays pure: it is `declaration_of(asset).transform`.
    """
    database, dot, bare = output.rpartition(".")
    if dot and database != "marts":
        raise DeclarationError(
            f'pipeline(output="{output}"): a pipeline writes to marts: name it {bare!r} or "marts.{bare}"'
        )

    def make(transform: Callable[..., Any]) -> dg.AssetsDefinition:
        declared = entities.pipeline(name=bare, inputs=inputs, version=version)(transform)
        return table_asset(declared, contract=None, policy=policy, run=run)

    return make


def publish(
    table: str, *, topic: str, key: str, policy: Policy = USUAL, run: Runner | None = None
) -> dg.AssetsDefinition:
    """Return the asset `topics/<topic>`: the changes of `table`, each once, for who reads the topic."""
    return table_asset(entities.publish(table, topic=topic, key=key), contract=None, policy=policy, run=run)


def _with_policy(spec: dg.AssetSpec, policy: Policy) -> dg.AssetSpec:
    return spec.replace_attributes(
        owners=list(policy.owners) if policy.owners is not None else spec.owners,
        group_name=policy.group or spec.group_name,
        tags={**spec.tags, **policy.tags},
        metadata={**spec.metadata, **policy.link_metadata},
        freshness_policy=policy.freshness,
    )
