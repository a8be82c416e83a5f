"""What `overload_run.py` holds a broker to that is offered three times what it can take."""

from pathlib import Path

import pytest
from overload_clients import Counts


@pytest.mark.parametrize(
    ("taken", "read", "finding"),
    [
        ([1, 1, 1], [0, 1, 2], None),
        ([1, 0, 1], [0, 2], None),  # that which was not acknowledged may be there or not
        ([1, 0, 1], [0, 1, 2], None),
        ([1, 1, 1], [0, 2], "1 of 3 acknowledged records of process 0 are lost"),
        ([1, 1, 1], [0, 1], "1 of 3 acknowledged records of process 0 are lost"),
        ([1, 1], [0, 1, 1], "1 records of process 0 are there more than once"),
        ([1, 1], [0, 1, 2], "process 0 took 2 records, and 3 were read"),
    ],
)
def test_what_was_read_is_held_against_what_was_acknowledged(
    tmp_path: Path, taken: list[int], read: list[int], finding: str | None
) -> None:
    (tmp_path / "taken").write_bytes(bytes(taken))
    counts = Counts()
    for record in read:
        counts.add(0, record)
    assert counts.findings([tmp_path / "taken"]) == ([finding] if finding else [])
