"""What a vacuum counts as left: files with rows that no commit names, which may be of a batch under way."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fluvial.delta.purge import _orphans


def test_files_of_no_commit_are_counted_unless_they_are_empty(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    schema = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
    actions = [
        {"commitInfo": {"operation": "WRITE"}},
        {"metaData": {"schemaString": json.dumps(schema), "partitionColumns": [], "configuration": {}}},
        {"add": {"path": "named.parquet", "size": 1, "partitionValues": {}, "dataChange": True}},
    ]
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
    for name, rows in (("named", [1]), ("empty", []), ("forgotten", [2]), ("_delta_log/0.checkpoint", [3])):
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), tmp_path / f"{name}.parquet")
    assert _orphans(str(tmp_path)) == 1
    # A file that was cut off may have rows.
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    assert _orphans(f"file:{tmp_path}") == 2
    assert _orphans("s3a://bucket/table") is None
