"""
Columns of the tables and where they come from, as far as contracts and declarations tell without a run.

What a pipeline does to its columns is known once Spark has analysed it: `fluvial.spark.lineage`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from fluvial.orchestration.assets.graph import asset_key, contract_columns, topic_key
from fluvial.registry.contracts import Contract
from fluvial.tables import Compacted, Declaration, History, Pipeline, State
from fluvial.tables.declare.reducers import Reducer

_QUOTED_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAME = re.compile(r"[A-Za-z_]\w*")


def known_columns(declaration: Declaration, contract: Contract | None) -> dict[str, Any]:
    """
    Return the metadata of columns that holds before any run: their types in the contract and their lineage.

    A state's columns have no types yet: Spark says them. Nothing is returned without a contract.
    """
    if contract is None:
        return {}
    metadata: dict[str, Any] = {"dagster/column_lineage": column_lineage(declaration, contract)}
    if isinstance(declaration, History | Compacted):
        metadata["dagster/column_schema"] = contract_columns(contract.schema)
    return metadata


def column_descriptions(declaration: Declaration, contract: Contract | None) -> dict[str, str]:
    """Return what is known of columns: the contract's documentation of a field, the fold of a column."""
    fields = contract.schema.get("fields", ()) if contract is not None else ()
    documented = {field["name"]: field["doc"] for field in fields if field.get("doc")}
    match declaration:
        case History() | Compacted():
            return documented
        case State(key=key, reducer=None):
            of_key = {key: documented[key]} if key in documented else {}
            return of_key | {column: str(fold) for column, fold in declaration.fields.items()}
        case Pipeline(aggregation=aggregation) if aggregation is not None:
            return {column: str(fold) for column, fold in aggregation.fields.items()}
    return {}


def column_lineage(declaration: Declaration, contract: Contract) -> dg.TableColumnLineage:
    """Return which fields of the topic each column of its table is made from."""
    fields = [field["name"] for field in contract.schema.get("fields", ())]
    match declaration:
        case History(topic=topic) | Compacted(topic=topic):
            return _lineage(topic_key(topic), {name: [name] for name in fields})
        case State(topic=topic, reducer=Reducer(names=columns)):
            # What the function reads of an event it does not tell.
            return _lineage(topic_key(topic), dict.fromkeys(columns, fields))
        case State(topic=topic, order=order):
            sources = {
                column: names_in((fold.expr, fold.where, order if fold.kind in _ORDERED else None), fields)
                for column, fold in declaration.fields.items()
            }
            return _lineage(topic_key(topic), sources)
    return dg.TableColumnLineage({})


_ORDERED = {"latest", "last_non_null", "first"}
"""The kinds of fold that ask which event comes after which."""


def names_in(texts: Iterable[str | None], fields: Sequence[str]) -> list[str]:
    """Return those of `fields` that lines of SQL name, in the order of `fields`; SQL does not heed their case."""
    named = {name.lower() for text in texts if text is not None for name in _NAME.findall(_QUOTED_TEXT.sub(" ", text))}
    return [name for name in fields if name.lower() in named]


def pipeline_lineage(columns: Mapping[str, Sequence[tuple[str, str]]]) -> dg.TableColumnLineage:
    """Return the lineage of a pipeline from the (table, column) pairs that each of its columns was made from."""
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(asset_key=asset_key(table), column_name=name) for table, name in sources]
            for column, sources in columns.items()
        }
    )


def _lineage(upstream: dg.AssetKey, columns: Mapping[str, Sequence[str]]) -> dg.TableColumnLineage:
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(asset_key=upstream, column_name=name) for name in names]
            for column, names in columns.items()
        }
    )
