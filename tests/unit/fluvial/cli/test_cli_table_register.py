"""`fluvial table register` where there is no catalog: what it says, and how it ends."""

import pyarrow as pa
from fluvial_command import Cli
from hand_written_table import HandWrittenTable


def test_without_a_catalog_it_says_where_one_is_named(cli: Cli) -> None:
    assert "write unity or hive in [catalog] of fluvial.toml" in cli.refused("table", "register")


def test_a_catalog_that_does_not_answer_is_one_line(cli: Cli) -> None:
    HandWrittenTable(cli.data_dir / "warehouse" / "state" / "customers", {"n": pa.int64()}).commit([(1,)])
    (cli.cwd / "fluvial.toml").write_text('[catalog]\nunity = "http://127.0.0.1:1"\n')
    assert "Unity Catalog at http://127.0.0.1:1 does not answer" in cli.refused("table", "register")
    assert "no table 'state.customer'" in cli.refused("table", "register", "state.customer")
