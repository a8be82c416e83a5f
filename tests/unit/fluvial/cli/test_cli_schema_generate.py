"""`fluvial schema generate` of a Parquet file."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from fluvial_command import Cli


def test_the_command_writes_a_contract_named_after_its_topic(tmp_path: Path) -> None:
    cli = Cli(tmp_path)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"station": ["SEA"]}), path)
    words = ("schema", "generate", "avro", "day-readings-value", "--from-parquet", str(path))
    schema = json.loads(cli.ok(*words, "--key", "station"))
    assert (schema["name"], schema["fluvial.key"]) == ("day_readings", "station")
    assert "name it, without --from-registry" in cli.run(*words[:3], *words[4:]).stderr
    assert "is not a Parquet file that can be read" in cli.refused(*words[:-1], str(tmp_path / "none.parquet"))
