"""
What comparing a table with what it should be comes to, and when two values are the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluvial.delta.errors import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN_MAX = 5
CLOSE = 1e-9
"""How far apart two floating-point numbers may be, relative to the larger: sums depend on their order."""


class NotBuiltError(TableError):
    """
    No run has made the table yet.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """
    One thing that the table has otherwise than expected: `where` is a range of offsets or a key.
    """

    where: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """
    What a table was found to be. `rows` were expected, `differences` hold the first few of `different`.

    `ranges` are the offsets by partition that were compared, `inputs` the versions of a pipeline's inputs. Values of
    the columns `close` may differ by :data:`CLOSE`.
    """

    table: str
    version: int
    ranges: dict[int, tuple[int, int]]
    rows: int
    different: int
    differences: tuple[Difference, ...]
    inputs: Mapping[str, int] = field(default_factory=dict)
    close: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """
        Whether the table is what was expected.
        """
        return self.different == 0


def comparable(frame: "DataFrame", name: str, of: str = "") -> str:
    """
    The column in a form that can be hashed and compared, which maps cannot.
    """
    column = f"{of}`{name}`"
    return f"to_json({column})" if "map<" in frame.schema[name].dataType.simpleString() else column


def same_value(left: str, right: str, *, close: bool) -> str:
    """
    The condition that two values are the same, or numbers that differ by no more than :data:`CLOSE`.
    """
    if not close:
        return f"{left} <=> {right}"
    # To Spark, NaN is equal to itself and greater than any other number; a difference from null is null.
    difference, larger = f"abs({left} - {right})", f"greatest(abs({left}), abs({right}))"
    is_close = f"{difference} < double('infinity') AND {difference} <= {CLOSE} * {larger}"
    return f"({left} <=> {right} OR coalesce({is_close}, false))"
