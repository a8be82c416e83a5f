"""What `fluvial run --skip` is told to leave out."""

import pytest
import typer

from fluvial.cli.run.skips import check_skips, parse_skips
from fluvial.tables import compacted, count, state


def test_offsets_are_named_by_topic_and_partition() -> None:
    assert parse_skips(["orders:3=1234", "orders:3=7,1234", "a.b-c:0=0", "orders:0=1"]) == {
        "orders": {0: (1,), 3: (7, 1234)},
        "a.b-c": {0: (0,)},
    }


@pytest.mark.parametrize(
    "text", ["orders", "orders:3", "orders:x=1", "orders:3=", "orders:3=1,", ":3=1", "orders:3=-1"]
)
def test_what_names_no_record_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="orders:3=1234,1240"):
        parse_skips([text])


def test_a_topic_of_none_of_the_tables_is_refused() -> None:
    tables = [compacted("orders"), state("totals", topic="orders", key="id", fields={"events": count()})]
    check_skips(parse_skips(["orders:0=1"]), tables)
    with pytest.raises(typer.BadParameter, match="none of the named tables"):
        check_skips(parse_skips(["order:0=1"]), tables)
