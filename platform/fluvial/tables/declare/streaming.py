"""
Streaming queries of the user's own: a transform of streaming frames, whose checkpoint and table are looked after.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from fluvial.spark.warehouse import is_table_name
from fluvial.tables.declare.declarations import DeclarationError, Pipeline

OutputMode = Literal["append", "complete"]


def streaming(
    *, name: str, inputs: Sequence[str], output_mode: OutputMode = "append", version: str | None = None
) -> Callable[[Callable[..., Any]], Pipeline]:
    """
    Declare the decorated function as the table `marts.<name>`, made by a query of Structured Streaming.

    It gets one streaming DataFrame for each of `inputs`, tables of the history that only grow, and returns one: with
    watermarks, joins of streams, `transformWithStateInPandas`, whatever Spark's Delta sink takes in its `output_mode`.
    A run reads what has come to the inputs since the last one and stops. The checkpoint lies in the warehouse.

    The checkpoint fits the code that it was made by. `version` names that code; without it the function's text and that
    of all it uses in the project do, and another one is refused until the table is rebuilt, which replays the inputs.
    """
    what = f'streaming("{name}")'
    if not is_table_name(name):
        raise DeclarationError(f"{what}: {name!r} is no table name: use letters, digits and underscores")
    if output_mode not in get_args(OutputMode):
        raise DeclarationError(
            f'{what}: output_mode is {output_mode!r}: a Delta table takes "append" and "complete"; for rows that are '
            'updated, declare a pipeline with a key="…"'
        )
    if isinstance(inputs, str) or not inputs:
        raise DeclarationError(f'{what} needs a list of input tables, such as inputs=["history.flight_events"]')
    for table in inputs:
        database, _, table_name = table.partition(".")
        if database != "history" or not is_table_name(table_name):
            raise DeclarationError(
                f"{what}: input {table!r} is no history: a stream reads rows that are added, and rows of other tables "
                "are replaced"
            )

    def declare(transform: Callable[..., Any]) -> Pipeline:
        return Pipeline(name=name, inputs=tuple(inputs), transform=transform, version=version, output_mode=output_mode)

    return declare
