"""
What of a declaration can be held against its contract without Spark, so that it is told before Spark starts.

What passes here may still be refused by `fluvial.tables.plan.checks`, which has Spark analyse every expression.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from fluvial.spark.avro import Contract
from fluvial.tables.declare.declarations import Compacted, DeclarationError, History, State

_FIELD = re.compile(r"[A-Za-z]\w*")
_NUMERIC = frozenset({"int", "long", "float", "double"})
_COMPLEX = ("enum", "array", "map", "record")
_TIMES = ("timestamp", "local-timestamp", "date")
_NAME_LIKENESS_MIN = 0.8


def check_fit(declaration: History | Compacted | State, contract: Contract) -> None:
    """
    Raise :class:`DeclarationError` where the key, or a fold of a bare field, cannot be meant as it is written.
    """
    fields = _fields(contract)
    if isinstance(declaration, History):
        if declaration.dedupe is not None:
            _check_dedupe(f'history("{declaration.topic}")', declaration.dedupe, contract, fields)
        return
    if declaration.key is not None:
        what = f'{declaration.kind}("{declaration.name}")'
        _check_key(what, declaration.key, contract, fields)
    if isinstance(declaration, State):
        _check_folds(declaration, contract, fields)


def _check_dedupe(what: str, dedupe: str, contract: Contract, fields: Mapping[str, str]) -> None:
    if dedupe not in fields:
        near = get_close_matches(dedupe, fields, n=1)
        meant = f'did you mean dedupe="{near[0]}"?' if near else f"it has {', '.join(fields)}"
        raise DeclarationError(f"{what}: {contract.subject} has no field {dedupe} to tell events apart by; {meant}")
    if fields[dedupe] in _COMPLEX:
        raise DeclarationError(f"{what}: dedupe = {dedupe} is {fields[dedupe]}: name a field that is one value")


def _check_key(what: str, key: str, contract: Contract, fields: Mapping[str, str]) -> None:
    declared = contract.key_field
    if declared is not None and key != declared and key in fields:
        raise DeclarationError(
            f'{what}: the record key of {contract.subject} is {declared} (its "fluvial.key"), '
            f"and {key} is another field: "
            f'write key="{declared}"'
        )
    if key in fields:
        return
    texts = [name for name, kind in fields.items() if kind == "string"]
    for near in get_close_matches(key, texts, n=1, cutoff=_NAME_LIKENESS_MIN):
        # `customer_key` beside a field `customer` is a name of its own, `custmer` is not.
        if near not in key and key not in near:
            raise DeclarationError(f'{what}: {contract.subject} has no field {key}: did you mean key="{near}"?')


def _check_folds(declaration: State, contract: Contract, fields: Mapping[str, str]) -> None:
    # Spark does not tell upper from lower case.
    kinds = {name.lower(): kind for name, kind in fields.items()}
    for column, fold in declaration.fields.items():
        if fold.expr is None or not _FIELD.fullmatch(fold.expr.strip()):
            continue
        field = fold.expr.strip()
        what = f'state("{declaration.name}"): field {column} = {fold}'
        if field.lower() not in kinds:
            if field in contract.renamed:
                raise DeclarationError(
                    f"{what}: {contract.subject} has no field {field} any more: it was renamed to "
                    f"{contract.renamed[field]}, write that"
                )
            for near in get_close_matches(field.lower(), kinds, n=1):
                raise DeclarationError(f"{what}: {contract.subject} has no field {field}: did you mean {near}?")
        elif fold.is_numeric and kinds[field.lower()] not in _NUMERIC | {"decimal", "?"}:
            numbers = [name for name, kind in fields.items() if kind in _NUMERIC or kind == "decimal"]
            instead = f", or name a field that is one ({', '.join(numbers)})" if numbers else ""
            raise DeclarationError(
                f"{what} needs a number, and {field} is {kinds[field.lower()]} in {contract.subject}: make it one, as "
                f'in "cast({field} as double)"{instead}'
            )


def _fields(contract: Contract) -> dict[str, str]:
    """The type of each field in a word: Avro's, or its logical type; `?` where it takes more than a look."""
    declared = contract.field_names if contract.declared is None else contract.declared
    return {field["name"]: _kind(field["type"]) for field in contract.document["fields"] if field["name"] in declared}


def _kind(avro_type: Any) -> str:
    if isinstance(avro_type, str):
        return avro_type if avro_type in _NUMERIC | {"string", "boolean", "bytes"} else "?"
    if isinstance(avro_type, list):
        kinds = {_kind(branch) for branch in avro_type if branch != "null"}
        return kinds.pop() if len(kinds) == 1 else "?"
    logical = str(avro_type.get("logicalType", ""))
    if logical:
        return logical if logical == "decimal" or logical.startswith(_TIMES) else "?"
    inner = avro_type["type"]
    return str(inner) if inner in _COMPLEX else _kind(inner)
