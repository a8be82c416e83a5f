"""
When rows that hold for a time are others than before: `DataFrame -> DataFrame`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluvial.delta.row_swap import CHANGE, CHANGED_AT
from fluvial.tables.declare.validity import Validity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY, FIRST, LAST = "_fluvial_of_", "_fluvial_first", "_fluvial_last"
"""Of each column of a key its value, and between which moments in microseconds something else holds than before."""
_NET, _UNTIL = "_fluvial_net", "_fluvial_until"
_EVER = 2**63 - 1


def changed_spans(changes: "DataFrame", path: Sequence[str], validity: Validity) -> "DataFrame":
    """
    Between which moments other rows hold for a key (the SQL expressions `path`), from rows that came and went.

    Of a version that was closed, and is otherwise as it was, that is from its end on: one row went that held for ever,
    and one came that holds until then.
    """
    from pyspark.sql.functions import expr

    times = {validity.since, validity.until, CHANGE, CHANGED_AT, *validity.said}
    maps = {name for name, kind in changes.dtypes if "map<" in kind}
    values = [
        f"{f'to_json(`{name}`)' if name in maps else f'`{name}`'} AS _fluvial_value_{index}"
        for index, name in enumerate(name for name in changes.columns if name not in times)
    ]
    rows = changes.where(f"`{validity.since}` IS NOT NULL").selectExpr(
        *(f"{step} AS {KEY}{index}" for index, step in enumerate(path)),
        f"unix_micros(`{validity.since}`) AS {FIRST}",
        f"coalesce(unix_micros(`{validity.until}`), {_EVER}L) AS {_UNTIL}",
        f"CASE {CHANGE} WHEN 'insert' THEN 1L ELSE -1L END AS {_NET}",
        *values,
    )
    grouped = rows.groupBy(*(name for name in rows.columns if name not in {_UNTIL, _NET})).agg(
        expr(f"sum({_NET}) AS {_NET}"), expr(f"min({_UNTIL}) AS _fluvial_soonest"), expr(f"max({_UNTIL}) AS {LAST}")
    )
    # As many came as went: until the first of their ends they held before, and hold still.
    first = f"CASE WHEN {_NET} = 0 THEN greatest({FIRST}, _fluvial_soonest) ELSE {FIRST} END"
    keys = [f"{KEY}{index}" for index in range(len(path))]
    return grouped.selectExpr(*keys, f"{first} AS {FIRST}", LAST).where(f"{FIRST} < {LAST}")
