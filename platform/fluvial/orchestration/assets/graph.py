"""
The names of the asset graph, and the parts of it that no run of ours makes: contracts and topics.

    contracts/<subject> → topics/<topic> → history/<name>, compacted/<name>, state/<name> → marts/<name>

A topic that a table is published to is made by a run, and stands below its table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from fluvial.registry.contracts import Contract
from fluvial.tables import Compacted, Declaration, History, Pipeline, Publication, State

TOPICS = "topics"
CONTRACTS = "contracts"


def asset_key(table: str) -> dg.AssetKey:
    """Return the key of a table: `history.orders` is `history/orders`; `topics.a.b` is the topic `a.b`."""
    return dg.AssetKey(table.split(".", 1))


def topic_key(topic: str) -> dg.AssetKey:
    """Return the key of a topic."""
    return dg.AssetKey([TOPICS, topic])


def contract_key(subject: str) -> dg.AssetKey:
    """Return the key of a contract."""
    return dg.AssetKey([CONTRACTS, subject])


def topic_of(declaration: Declaration) -> str | None:
    """Return the topic that a table is built from; what reads tables has none."""
    match declaration:
        case History(topic=topic) | Compacted(topic=topic) | State(topic=topic):
            return topic
        case Pipeline() | Publication():
            return None


def upstream_keys(declaration: Declaration) -> list[dg.AssetKey]:
    """Return the keys of what a table is built from."""
    if isinstance(declaration, Pipeline | Publication):
        return [asset_key(table) for table in declaration.inputs]
    return [topic_key(declaration.topic)]


def table_of(key: dg.AssetKey) -> str:
    """Return the name in SQL of an asset that is a table; the inverse of `asset_key`."""
    return ".".join(key.path)


def value_contracts(contracts: Iterable[Contract]) -> dict[str, Contract]:
    """Return, for each topic, the contract of its values."""
    return {topic: contract for contract in contracts if not contract.is_key for topic in contract.topics}


def owners_of(contract: Contract | None) -> list[str] | None:
    """Return who answers for a contract, as Dagster takes it: an e-mail address and `team:<name>`."""
    return [contract.email, f"team:{contract.producer}"] if contract else None


def tags_of(contract: Contract | None) -> dict[str, str]:
    """Return the tags of what a producer writes: its own, and its name."""
    return {"producer": contract.producer, **contract.tags} if contract else {}


def group_of(contract: Contract | None, otherwise: str) -> str:
    """Return the group of what a contract describes: the domain that its producer's tags name, where they do."""
    domain = contract.tags.get("domain") if contract else None
    return re.sub(r"\W", "_", domain, flags=re.ASCII) if domain else otherwise


def links_of(contract: Contract | None) -> dict[str, Any]:
    """Return a producer's links as Dagster shows them."""
    return {name: dg.MetadataValue.url(address) for name, address in contract.links.items()} if contract else {}


def source_specs(declarations: Iterable[Declaration], contracts: Sequence[Contract]) -> list[dg.AssetSpec]:
    """
    Return the external assets of a project: every contract, and every topic that a table reads or a contract describes.
    Topics that the project publishes to are no external ones.

    The project neither makes nor watches them; they show where the tables' rows come from and who answers for them.
    """
    declared = list(declarations)
    read = {topic for declaration in declared if (topic := topic_of(declaration))}
    published = {each.topic for each in declared if isinstance(each, Publication)}
    described = {topic for contract in contracts for topic in contract.topics}
    return [
        *(contract_spec(contract) for contract in contracts),
        *(topic_spec(topic, contracts) for topic in sorted((read | described) - published)),
    ]


def contract_spec(contract: Contract) -> dg.AssetSpec:
    """Return the external asset of a contract."""
    return dg.AssetSpec(
        contract_key(contract.subject),
        group_name=group_of(contract, CONTRACTS),
        kinds={"avro"},
        owners=owners_of(contract),
        tags=tags_of(contract),
        description=contract.schema.get("doc"),
        metadata={
            **links_of(contract),
            "dagster/column_schema": contract_columns(contract.schema),
            "compatibility": contract.compatibility,
            "file": f"{contract.path.parent.name}/{contract.path.name}",
        },
    )


def topic_spec(topic: str, contracts: Sequence[Contract]) -> dg.AssetSpec:
    """Return the external asset of a topic, with the columns of its values and the contracts above it."""
    of_values = value_contracts(contracts).get(topic)
    return dg.AssetSpec(
        topic_key(topic),
        deps=[contract_key(contract.subject) for contract in contracts if topic in contract.topics],
        group_name=group_of(of_values, TOPICS),
        kinds={"kafka"},
        owners=owners_of(of_values),
        tags=tags_of(of_values),
        description=f"Written by {of_values.producer}." if of_values else None,
        metadata={**links_of(of_values), "dagster/column_schema": contract_columns(of_values.schema)}
        if of_values
        else None,
    )


def contract_columns(schema: Mapping[str, Any]) -> dg.TableSchema:
    """Show the fields of an Avro record as columns."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                field["name"],
                avro_type_name(field["type"]),
                description=field.get("doc"),
                constraints=dg.TableColumnConstraints(nullable="null" in _branches(field["type"])),
            )
            for field in schema.get("fields", ())
        ]
    )


def avro_type_name(avro_type: Any) -> str:
    """Name an Avro type in a word or two: `timestamp-millis`, `enum EventType`, `array<string>`; null goes unsaid."""
    branches = [branch for branch in _branches(avro_type) if branch != "null"] or ["null"]
    return " | ".join(branch if isinstance(branch, str) else _complex_type_name(branch) for branch in branches)


def _complex_type_name(avro_type: Mapping[str, Any]) -> str:
    match avro_type:
        case {"logicalType": str(logical)}:
            return logical
        case {"type": "array", "items": items}:
            return f"array<{avro_type_name(items)}>"
        case {"type": "map", "values": values}:
            return f"map<{avro_type_name(values)}>"
        case {"type": kind, "name": name}:
            return f"{kind} {name}"
        case _:
            return avro_type_name(avro_type["type"])


def _branches(avro_type: Any) -> list[Any]:
    return avro_type if isinstance(avro_type, list) else [avro_type]
