"""
Whether Sail gives what Spark would for a plan of DataFrames, told from the messages of Spark Connect. Pure.

The expressions are written down as SQL, roughly, for that is what :mod:`fluvial.query.routing` judges. What is not
known here is Spark's.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from fluvial.query.routing import why_spark, why_spark_answer, why_spark_types
from fluvial.query.words import StatementError

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
        "unpivot",
        "with_columns",
        "with_columns_renamed",
    }
)
# What expressions are a part of, and have no name of their own.
_INNER = frozenset({"alias", "lambda_function", "sort_order", "unresolved_extract_value", "update_fields", "window"})
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
    try:
        text = f"SELECT {', '.join(_expressions(plan.root, inputs)) or '1'}"
        of_words = why_spark(text) or why_spark_types(text, [*columns, *answer])
        return of_words or why_spark_answer(text, [kind for _, kind in answer])
    except _OnlySparkError as error:
        return str(error)
    except StatementError:
        return "its expressions are not understood here"


def _expressions(relation: Any, inputs: Collection[str]) -> Iterator[str]:
    """The expressions of a relation and of all below it."""
    kind = relation.WhichOneof("rel_type")
    if kind == "sql":
        if relation.sql.query not in inputs:
            raise _OnlySparkError("it asks a statement of its own")
        return
    if kind not in _RELATIONS:
        raise _OnlySparkError(f"{kind} is not judged here")
    yield from _within(getattr(relation, kind), inputs)


def _within(message: Any, inputs: Collection[str]) -> Iterator[str]:
    """The expressions anywhere in a message."""
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Relation":
        yield from _expressions(message, inputs)
    elif name == "spark.connect.Expression":
        yield _text(message)
    elif not name.endswith("RelationCommon"):
        for each in _parts(message):
            yield from _within(each, inputs)


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
