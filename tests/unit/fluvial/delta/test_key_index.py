"""
The index of a table's keys against a plain dict.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluvial.delta import key_index
from fluvial.delta.key_index import GONE, Digests, KeyIndex, RowLocations

Row = tuple[str, int, int, int]

rows = st.tuples(
    st.sampled_from(["a.parquet", "b.parquet", "c.parquet"]),
    st.integers(0, 2**40),
    st.integers(0, 100),
    st.integers(0, 2**60),
)
batches = st.lists(st.dictionaries(st.text(max_size=3), st.none() | rows, max_size=12), min_size=1, max_size=12)


def locations_of(index: KeyIndex, found: list[Row | None]) -> RowLocations:
    gone = (GONE, GONE, GONE, GONE)
    numbered = [gone if row is None else (index.file_number(row[0]), *row[1:]) for row in found]
    columns = np.array(numbered, np.int64).reshape(-1, 4)
    return RowLocations(*(np.ascontiguousarray(columns[:, number]) for number in range(4)))


@given(batches)
def test_an_index_finds_what_a_dict_holds(changes: list[dict[str, Row | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_YOUNG_MIN", 4)  # so that new keys are merged into the many again and again
        index, model = KeyIndex(0), dict[str, Row]()
        seen: dict[str, None] = {}
        for batch in changes:
            index.put(Digests.of(batch), locations_of(index, list(batch.values())))
            for key, row in batch.items():
                seen[key] = None
                if row is None:
                    model.pop(key, None)
                else:
                    model[key] = row
            assert len(index) == len(model)
            found = index.find(Digests.of(seen))
            for key, file, row, partition, offset in zip(
                seen, found.file, found.row, found.partition, found.offset, strict=True
            ):
                wanted = model.get(key)
                if wanted is None:
                    assert file == GONE
                else:
                    assert (index.file_name(file), row, partition, offset) == wanted


def test_rows_are_told_apart_by_their_files() -> None:
    index = KeyIndex(0)
    locations = locations_of(index, [("a", 1, 0, 0), None, ("b", 2, 0, 0), ("a", 0, 0, 0)])
    found = index.rows_by_file(locations)
    assert {name: numbers.tolist() for name, numbers in found.items()} == {"a": [1, 0], "b": [2]}
    assert index.rows_by_file(locations.take(locations.file == GONE)) == {}


def test_a_key_with_two_rows_is_refused() -> None:
    index = KeyIndex(0)
    with pytest.raises(ValueError, match="a key has two rows"):
        index.put(Digests.of(["k", "k"]), locations_of(index, [("a", 1, 0, 0), ("a", 2, 0, 0)]))


def test_keys_that_share_half_a_digest_are_told_apart() -> None:
    index = KeyIndex(0)
    keys = Digests(np.array([7, 7, 7, 9], np.uint64), np.array([3, 1, 2, 1], np.uint64))
    index.put(keys, locations_of(index, [("a", row, 0, 0) for row in range(4)]))
    wanted = Digests(np.array([7, 7, 7, 9, 7, 9, 8], np.uint64), np.array([1, 2, 3, 1, 4, 0, 1], np.uint64))
    assert index.find(wanted).row.tolist() == [1, 2, 0, 3, GONE, GONE, GONE]
