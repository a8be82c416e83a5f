"""
Tables with deletion vectors in the hands of readers that are not Spark, as docs/reading-tables.md has them.
"""

import re
import shutil
import uuid
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from log_topic import Schemas, Sent, Topic

from fluvial.config import Settings
from fluvial.spark.session import build_session, register_tables, run_sql
from fluvial.tables import State, collect_set, count, pipeline, state, sum_
from fluvial.tables.drive.runner import materialize

pytestmark = pytest.mark.spark

pytest.importorskip("duckdb")
polars = pytest.importorskip("polars")
deltalake = pytest.importorskip("deltalake")
REFUSAL = pytest.raises(deltalake.exceptions.DeltaProtocolError, match="deletionVectors")

PAGE = Path(__file__).parents[2] / "docs" / "reading-tables.md"
WAREHOUSE = ".fluvial/warehouse"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}


def orders(customers: range, amount: str) -> list[Sent]:
    return [Sent(key=f"c{number}", value={"city": "Bern", "amount": Decimal(amount)}) for number in customers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A state that was made in two batches, and what it takes to go on with it."""

    declaration: State
    settings: Settings
    schemas: Schemas

    @property
    def path(self) -> str:
        return f"{self.settings.warehouse}/state/spending"


@pytest.fixture(scope="module")
def made(
    base_settings: Settings,
    bootstrap_servers: str,
    schemas: Schemas,
    tmp_path_factory: pytest.TempPathFactory,
) -> Made:
    """The state `spending`, which tests only read; its second batch replaced ten of forty rows and took one away."""
    warehouse = str(tmp_path_factory.mktemp("readers"))
    settings = replace(base_settings, warehouse=warehouse, bootstrap_servers=bootstrap_servers)
    spark = build_session(settings, "fluvial tests")
    name = f"t_{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(30)
    schemas.register(f"{name}-value", SCHEMA)
    topic = Topic(name=name, bootstrap_servers=bootstrap_servers, schemas=schemas, partitions=1)
    fields = {"orders": count(), "spent": sum_("amount"), "cities": collect_set("city")}
    declaration = state("spending", topic=name, key="customer", fields=fields)
    for batch in (orders(range(40), "1.50"), [*orders(range(10), "2.25"), Sent(key="c39")]):
        topic.send(batch)
        materialize(declaration, settings, spark, schemas=schemas)
    return Made(declaration=declaration, settings=settings, schemas=schemas)


def test_every_reader_of_the_page_sees_each_entity_once(made: Made) -> None:
    table = deltalake.DeltaTable(made.path)
    # What makes the difference: the files hold more rows than the table does.
    assert sum(pq.read_metadata(file).num_rows for file in table.file_uris()) == 50
    expected = {(f"c{number}", 2, Decimal("3.75")) for number in range(10)}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    readers = [block for block in blocks if WAREHOUSE in block]
    assert len(readers) == 4
    for block in readers:
        names: dict[str, Any] = {}
        exec(block.replace(WAREHOUSE, made.settings.warehouse), names)
        found = pa.table(names["spending"]).select(["customer", "orders", "spent"]).to_pylist()
        assert len(found) == len(expected), block
        assert {tuple(row.values()) for row in found} == expected, block
    assert polars.scan_delta(made.path).collect().height == 39
    before = polars.scan_delta(made.path, version=0).collect()
    assert before["orders"].to_list() == [1] * 40
    assert before["cities"].to_list() == [["Bern"]] * 40


def test_what_does_not_know_deletion_vectors_refuses_the_table(made: Made) -> None:
    with REFUSAL:
        deltalake.DeltaTable(made.path).to_pyarrow_table()
    with REFUSAL:
        deltalake.DeltaTable(made.path).to_pyarrow_dataset()
    with REFUSAL:
        polars.read_delta(made.path, use_pyarrow=True)


def test_other_readers_have_copies_and_a_purged_table_goes_on(made: Made, spark: Any, tmp_path: Path) -> None:
    warehouse = shutil.copytree(made.settings.warehouse, tmp_path / "warehouse")
    settings = replace(made.settings, warehouse=str(warehouse))
    register_tables(spark, settings)
    plain = pipeline(name="spending_plain", inputs=["state.spending"])(lambda spending: spending.drop("_fold"))
    materialize(plain, settings, spark)
    copy = deltalake.DeltaTable(f"{warehouse}/marts/spending_plain")
    assert copy.protocol().min_reader_version == 1
    assert copy.to_pyarrow_table().num_rows == 39

    run_sql(spark, settings, "REORG TABLE state.spending APPLY (PURGE)").collect()
    table = deltalake.DeltaTable(f"{warehouse}/state/spending")
    assert sum(pq.read_metadata(file).num_rows for file in table.file_uris()) == 39
    with REFUSAL:
        table.to_pyarrow_table()
    assert materialize(made.declaration, settings, spark, schemas=made.schemas).skipped
