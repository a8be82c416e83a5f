"""
Tables are the same whenever they were read: random histories of a contract in random batches, some interrupted.

FLUVIAL_HISTORIES=A:B runs these seeds instead of a few; `make rota` takes sixty.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from log_topic import Schemas, Topic
from schema_histories import FIRST, ContractHistory, contract_of, plain, records, resolved

from fluvial.config import Settings
from fluvial.tables import compacted, count, history, last_non_null, latest, state, sum_
from fluvial.tables.declare.declarations import Compacted, History, State
from fluvial.tables.drive import runner
from fluvial.tables.drive.rebuild import rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.drive.verify import verify
from fluvial.tables.plan.table_index import TableIndexes

pytestmark = pytest.mark.spark

FIRST_SEED, END_SEED = map(int, os.environ.get("FLUVIAL_HISTORIES", "0:6").split(":"))
Table = History | Compacted | State


class KilledError(Exception):
    """The process is as good as gone."""


def declared(kind: str, topic: Topic, name: str) -> Table:
    if kind == "history":
        return history(topic.name, name=name)
    if kind == "compacted":
        return compacted(topic.name, name=name, key="id")
    fields = {"events": count(), "total": sum_("n"), "last": latest("n"), "known": last_non_null("s")}
    return state(name, topic=topic.name, key="id", fields=fields)


def rows_of(spark: Any, table: Table, settings: Settings) -> list[dict[str, Any]]:
    found = spark.read.format("delta").load(f"{settings.warehouse}/{table.table.replace('.', '/')}")
    return sorted((plain(row) for row in found.collect()), key=repr)


def expected(kind: str, topic: Topic) -> list[dict[str, Any]]:
    """The rows by fastavro and plain Python, without where they lie in the log."""
    found = list(resolved(topic, contract_of(topic)))
    if kind == "history":
        names = contract_of(topic).field_names
        return [value if value is not None else dict.fromkeys(names) for _, _, _, value in found]
    alive: dict[str, Any] = {}
    for key, _, _, value in found:
        if value is None:
            alive.pop(key, None)
        elif kind == "compacted":
            alive[key] = {**value, "id": key}
        else:
            before = alive.get(key, {"id": key, "events": 0, "total": 0, "known": None})
            known = value["s"] if value["s"] is not None else before["known"]
            alive[key] = {
                "id": key,
                "events": before["events"] + 1,
                "total": before["total"] + value["n"],
                "last": value["n"],
                "known": known,
            }
    return list(alive.values())


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Have the next commits fail before or after they are made, as a killed process would leave them."""
    real, at = runner.commit_once, [None]

    def commit_once(log: Any, stamp: Any, *, above: Any, write: Callable[[], None]) -> Any:
        if at[0] == "before":
            raise KilledError
        commit = real(log, stamp, above=above, write=write)
        if at[0] == "after":
            raise KilledError
        return commit

    def set_at(when: Any) -> None:
        at[0] = when

    monkeypatch.setattr(runner, "commit_once", commit_once)
    return set_at


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, END_SEED))
def test_a_table_is_the_same_whenever_it_was_read(
    spark: Any,
    settings: Settings,
    schemas: Schemas,
    make_topic: Any,
    interrupted: Callable[[str | None], None],
    seed: int,
) -> None:
    rng = Random(seed)
    topic = make_topic(None)
    schemas.set_config("NONE", topic.subject)  # what may follow what is the registry's to say, and has its own tests
    contract, kind = ContractHistory(rng), ("history", "compacted", "state")[seed % 3]
    known = {schemas.register(topic.subject, FIRST): FIRST}
    table, fresh = declared(kind, topic, "table"), declared(kind, topic, "fresh")
    indexes = TableIndexes() if rng.random() < 0.5 else None
    topic.send(records(rng, known, rng.randint(1, 6)))
    materialize(table, settings, spark, schemas=schemas, indexes=indexes)
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 2)):
            version = contract.change()
            known[schemas.register(topic.subject, version)] = version
        if rng.random() < 0.3:
            assert verify(table, settings, spark, schemas=schemas).is_exact
        if rng.random() < 0.8:
            topic.send(records(rng, known, rng.randint(1, 6)))
        if rng.random() < 0.4:
            interrupted(rng.choice(("before", "after")))
            with suppress(KilledError):  # where there is nothing to commit it ends as it should
                materialize(table, settings, spark, schemas=schemas, indexes=indexes)
            interrupted(None)
        materialize(table, settings, spark, schemas=schemas, indexes=indexes, records_max=rng.choice((None, 2)))
        while not materialize(table, settings, spark, schemas=schemas, indexes=indexes).skipped:
            pass
    assert verify(table, settings, spark, schemas=schemas).is_exact
    materialize(fresh, settings, spark, schemas=schemas)
    found = rows_of(spark, table, settings)
    assert found == rows_of(spark, fresh, settings)
    assert sorted(found[0]) == sorted(rows_of(spark, fresh, settings)[0]) if found else True
    own = (
        {"id"} | set(contract_of(topic).field_names) if kind != "state" else {"id", "events", "total", "last", "known"}
    )
    without = [{name: value for name, value in row.items() if name in own} for row in found]
    assert sorted(without, key=repr) == sorted(map(ordered(without), map(plain, expected(kind, topic))), key=repr)
    if rng.random() < 0.3:
        rebuild(table, settings, spark, schemas=schemas)
        assert rows_of(spark, table, settings) == found


def ordered(like: list[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Put the columns of a row in the order of those rows, so that both have one text."""
    names = list(like[0]) if like else []
    return lambda row: {name: row[name] for name in names}
