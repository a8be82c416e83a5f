"""
Whether a refresh by keys or the full query is cheaper, from numbers of rows that the tables' logs have.

The unit is a row that the full query reads from an input, moves, and aggregates. The weights are rounded from the
processor time of a few refreshes: of those whose rows the driver finds in `tests.bench.nexmark.roads`, with 10,000 to
400,000 rows, of the others of the tables of `make bench-incremental`, with 1 and 4 million; those of replaced rows and
of parts are guesses. What the transform itself does with a row is not known, and taken to be the same on all roads.
"""

from dataclasses import dataclass

FIXED = 1_500_000
"""What a refresh by keys costs whatever its size: Spark's jobs for the changes, the old rows and the swap."""
FIXED_PARTS = 1_000_000
"""The same of a refresh from the changed rows alone."""
FIXED_HERE = 20_000
"""
The same of both where few rows changed and the driver finds the old rows: from 10,000 rows of inputs on it took less of
the processor than the full query's jobs. This much is left for the small files and vectors that it leaves behind.
"""
READ = 0.1
"""A row of an input that is read, and left out as its key is not among those that changed."""
FIXED_GONE = 200_000
"""What finding rows that go costs whatever their number."""
SWAPPED = 4.0
"""A row of the table that is found, marked as gone and written again, beside one that is written in a whole table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    The rows that both roads would have to do with.

    `inputs` are the rows of the inputs, `read` those of them in files that may hold a key that changed, `table` the
    rows of the table. `changed` rows came or went in the inputs; `keys` are the keys that they name and `replaced` the
    table's rows of these, None while the changes have not been read. With `of_parts` an aggregate's rows are made from
    the changed rows, and else from the inputs' rows of the changed keys; `here` says that the driver finds the old
    rows, and of parts that it makes the new ones too.
    """

    inputs: int
    read: int
    table: int
    changed: int
    keys: int | None = None
    replaced: int | None = None
    of_parts: bool = False
    here: bool = False

    @property
    def share(self) -> float:
        """
        The part of the table's rows that is replaced, which that of the inputs' rows is taken to be as well.
        """
        return min(1.0, (1 if self.replaced is None else self.replaced) / max(self.table, 1))

    @property
    def full(self) -> int:
        """
        The cost of the full query.
        """
        return self.inputs + self.table

    @property
    def by_keys(self) -> int:
        """
        The cost of a refresh by keys; a lower bound of it while the keys are not known.
        """
        moved = self.share * (self.inputs + SWAPPED * self.table)
        fixed = FIXED_HERE if self.here else FIXED
        return round(fixed + self.changed + READ * self.read + moved)

    @property
    def by_parts(self) -> int:
        """
        The cost of a refresh from the changed rows, each taken to be of another key and to have its place in the table.
        """
        replaced = min(self.changed, self.table)
        fixed = FIXED_HERE if self.here else FIXED_PARTS
        return round(fixed + self.changed + READ * self.table + SWAPPED * replaced)

    @property
    def cheaper(self) -> int:
        """
        The cost of the refresh that the full query is compared with.
        """
        return self.by_parts if self.of_parts else self.by_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """
    The rows that a refresh by the changed rows alone and the full query would have to do with.

    `inputs` are the rows of the inputs that changed, `changed` those that came to them or went, `table` the rows of the
    table, in which those that go must be found unless rows `only_came`.
    """

    inputs: int
    changed: int
    table: int
    only_came: bool

    @property
    def full(self) -> int:
        """
        The cost of the full query.
        """
        return self.inputs + self.table

    @property
    def by_rows(self) -> int:
        """
        The cost of a refresh by the changed rows.
        """
        if self.only_came:
            return self.changed
        return round(FIXED_GONE + self.changed + READ * self.table + SWAPPED * min(self.changed, self.table))


def why_full_of_rows(work: RowWork) -> str | None:
    """
    Why the full query is cheaper than a refresh by the changed rows; None where it is not.
    """
    if work.by_rows <= work.full:
        return None
    return _cheaper(f"{work.changed:,} rows changed", work.inputs, work.table)


def why_full(work: Work) -> str | None:
    """
    Why the full query is cheaper; None where it is not, and while that depends on keys that are not known.
    """
    if work.full >= work.cheaper:
        return None
    said = f"{work.changed:,} rows changed" if work.keys is None else f"{work.keys:,} keys changed"
    return _cheaper(said, work.inputs, work.table)


def _cheaper(changed: str, inputs: int, table: int) -> str:
    return f"it is cheaper: {changed}, the inputs have {inputs:,} rows and the table {table:,}"
