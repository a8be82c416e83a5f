"""
Whether Sail gives what Spark would for a plan of DataFrames, told from the messages of Spark Connect. Pure.

The expressions are written down as SQL, roughly, for that is what :mod:`fluvial.query.routing` judges. What is not
known here is Spark's.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluvial.query.routing import why_spark, why_spark_answer, why_spark_types
from fluvial.query.words import StatementError, words_of

_RELATIONS = frozenset(
    {
        "aggregate",
        "deduplicate",
        "drop",
        "drop_na",
        "fill_na",
        "filter",
        "hint",
        "join",
        "project",
        "repartition",
        "repartition_by_expression",
        "set_op",
        "sort",
        "subquery_alias",
        "to_df",
        "with_columns",
        "with_columns_renamed",
    }
)
# What expressions are a part of, and have no name of their own.
_INNER = frozenset({"alias", "lambda_function", "sort_order", "unresolved_extract_value", "update_fields", "window"})
_RENAMES = frozenset({"to_df", "with_columns_renamed"})
_KINDS = frozenset(
    {"array", "bigint", "decimal", "double", "float", "int", "integer", "map", "smallint", "struct", "tinyint"}
)
_NESTED = re.compile(r"(\bas\s+(?:array|map|struct))\s*<[^()'\"]*>", re.IGNORECASE)
_ANY = frozenset({"array", "bigint", "decimal", "double", "int"})
_NONE: frozenset[str] = frozenset()
_PLAIN_LITERALS = {"string": "''", "binary": "X''", "boolean": "true", "double": "1e0", "float": "1e0"}


class _OnlySparkError(Exception):
    """The plan holds what is not judged; the text says what."""


def why_spark_plan(
    plan: Any, inputs: Collection[str], columns: Sequence[tuple[str, str]], answer: Sequence[tuple[str, str]]
) -> str | None:
    """
    Why a plan is Spark's, as the rest of a sentence that begins with it; None where Sail may answer.

    It may read the statements `inputs` alone, whose columns are `columns`, with Spark's names of types; `answer` are
    the columns of what it makes.
    """
    kinds: dict[str, frozenset[str]] = {}
    for name, kind in columns:
        kinds[name.lower()] = kinds.get(name.lower(), _NONE) | {kind}
    try:
        for step in _steps(plan.root, inputs):
            text = f"SELECT {step.text}"
            of_words = why_spark(text) or why_spark_types(text, _named(step, kinds))
            if of_words is not None:
                return of_words
            # More is said than a column may be, never less: a name may be another column's elsewhere in the plan.
            made = _of_all(step, kinds)
            kinds |= {name.lower(): kinds.get(name.lower(), _NONE) | made for name in step.makes}
        return why_spark_answer("SELECT 1 + 1", [kind for _, kind in answer])
    except _OnlySparkError as error:
        return str(error)
    except StatementError:
        return "its expressions are not understood here"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """
    An expression as SQL, the columns that it asks for, and those that it makes.
    """

    text: str
    asks: frozenset[str]
    makes: tuple[str, ...] = ()


def _named(step: _Step, kinds: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """The columns with their types; one that is not known is of every type."""
    known = ((name, " ".join(each)) for name, each in kinds.items())
    return [*known, *((name, " ".join(_ANY)) for name in step.asks if name.lower() not in kinds)]


def _of_all(step: _Step, kinds: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The types of all that an expression names."""
    names = {word.name.lower() for word in words_of(step.text) if word.is_name}
    found = _NONE.union(*(kinds[name] for name in names & kinds.keys()), names & _KINDS)
    return found | _ANY if any(name.lower() not in kinds for name in step.asks) else found


def _steps(relation: Any, inputs: Collection[str]) -> Iterator[_Step]:
    """The expressions of a relation, behind those of all below it."""
    kind = relation.WhichOneof("rel_type")
    if kind == "sql":
        if relation.sql.query not in inputs:
            raise _OnlySparkError("it asks a statement of its own")
        return
    if kind not in _RELATIONS:
        raise _OnlySparkError(f"{kind} is not judged here")
    body = getattr(relation, kind)
    yield from _within(body, inputs)
    if kind in _RENAMES:
        yield _Step(text="1", asks=frozenset({""}), makes=tuple(_renamed(body)))


def _renamed(body: Any) -> Iterator[str]:
    """The names that columns are given which keep what they are."""
    yield from getattr(body, "column_names", ())
    yield from getattr(body, "rename_columns_map", {}).values()
    yield from (each.new_col_name for each in getattr(body, "renames", ()))


def _within(message: Any, inputs: Collection[str]) -> Iterator[_Step]:
    """The expressions anywhere in a message."""
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Relation":
        yield from _steps(message, inputs)
    elif name == "spark.connect.Expression":
        if message.WhichOneof("expr_type") == "alias":
            yield _step(message.alias.expr, message.alias.name)
        else:
            yield _step(message)
    elif name == "spark.connect.Expression.Alias":
        yield _step(message.expr, message.name)
    elif not name.endswith("RelationCommon"):
        for each in _parts(message):
            yield from _within(each, inputs)


def _step(expression: Any, makes: Sequence[str] = ()) -> _Step:
    text = _text(expression)
    if expression.WhichOneof("expr_type") == "expression_string":
        # The types within a type are no casts of what is here.
        text = _NESTED.sub(r"\1", expression.expression_string.expression)
        words = words_of(text)
        makes = [words[-1].name] if len(words) > 2 and words[-2].is_keyword("AS") else makes
        return _Step(text=text, asks=frozenset(), makes=tuple(makes))
    return _Step(text=text, asks=frozenset(_attributes(expression)), makes=tuple(makes))


def _attributes(message: Any) -> Iterator[str]:
    """The last parts of the names of columns anywhere in a message."""
    if message.DESCRIPTOR.full_name == "spark.connect.Expression.UnresolvedAttribute":
        words = words_of(message.unparsed_identifier)
        yield words[-1].name if words else ""
    for each in _parts(message):
        yield from _attributes(each)


def _parts(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            yield from ((value,) if hasattr(value, "DESCRIPTOR") else value)


def _text(expression: Any) -> str:
    kind = expression.WhichOneof("expr_type")
    body = getattr(expression, kind)
    text: str | None = None
    match kind:
        case "literal":
            text = _literal(body)
        case "unresolved_attribute":
            text = body.unparsed_identifier
        case "unresolved_named_lambda_variable":
            text = ".".join(body.name_parts)
        case "unresolved_star":
            text = "1"
        case "expression_string":
            text = f"({body.expression})"
        case "cast":
            text = f"CAST({_text(body.expr)} AS {body.type_str or body.type.WhichOneof('kind').upper()})"
        case "unresolved_function" if not body.is_user_defined_function:
            text = _function(body.function_name, [_text(each) for each in body.arguments])
        case _ if kind in _INNER:
            text = f"({', '.join(_inner(body)) or '1'})"
    if text is None:
        raise _OnlySparkError(f"{kind.replace('_', ' ')} is not judged here")
    return text


def _inner(body: Any) -> list[str]:
    """The expressions within one, which may stand in messages of other kinds."""
    found = []
    for each in _parts(body):
        found.extend([_text(each)] if each.DESCRIPTOR.full_name == "spark.connect.Expression" else _inner(each))
    return found


def _function(name: str, arguments: list[str]) -> str:
    if name.isidentifier():
        return f"{name}({', '.join(arguments)})"
    return f"({f' {name} '.join(arguments)})"


def _literal(body: Any) -> str:
    kind = body.WhichOneof("literal_type")
    return "1.0" if kind == "decimal" else _PLAIN_LITERALS.get(kind, "1")
