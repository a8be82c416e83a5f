"""
Tables are the same whenever they were read: random histories of a contract in random batches, some of them cut short.

A batch is cut short by an exception or by a SIGKILL of its driver, at a step of its commit or at any moment.
FLUVIAL_HISTORIES=A:B runs these seeds instead of one; `make rota` takes sixty, and this five hundred at two a time:

    FLUVIAL_ROTA=1 FLUVIAL_HISTORIES=0:500 python -m pytest -q -n2 tests/spark/test_spark_schema_histories.py
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from histories_driver import Driver, Ending, InterruptedRunError, KilledError, Order
from killed_driver import STEPS
from log_topic import Schemas, Topic
from schema_histories import FIRST, ContractHistory, contract_of, plain, records, resolved

from fluvial.config import Settings

pytestmark = pytest.mark.spark

FIRST_SEED, END_SEED = map(int, os.environ.get("FLUVIAL_HISTORIES", "0:1").split(":"))
KINDS = ("history", "compacted", "state")
# A killed driver takes its session with it, which takes as long to make as a history.
KILLS = 0.25
MOMENT_MS_MAX = 1500


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


def an_ending(rng: Random) -> Ending:
    """How the next run is cut short."""
    if rng.random() >= KILLS:
        return Ending(step=rng.choice(("planned", "committed")), is_kill=False)
    step = rng.choice((*STEPS, None, None))
    return Ending(step=step, after_ms=rng.uniform(0, MOMENT_MS_MAX))


@pytest.fixture(scope="module")
def driver(base_settings: Settings, bootstrap_servers: str, platform: Any) -> Iterator[Driver]:
    driver = Driver(
        settings=replace(base_settings, bootstrap_servers=bootstrap_servers, registry_url=platform.registry_url)
    )
    yield driver
    driver.stop()


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)  # hundreds of histories


@pytest.mark.rota
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, END_SEED))
def test_a_table_is_the_same_whenever_it_was_read(
    driver: Driver, warehouse: Path, schemas: Schemas, make_topic: Any, seed: int
) -> None:
    rng, cuts = Random(seed), Random(f"cuts of {seed}")
    topic = make_topic(None)
    schemas.set_config("NONE", topic.subject)  # what may follow what is the registry's to say, and has its own tests
    contract, kind = ContractHistory(rng), KINDS[seed % 3]
    known = {schemas.register(topic.subject, FIRST): FIRST}
    has_indexes = rng.random() < 0.5

    def ask(what: str, name: str = "table", **more: Any) -> Any:
        order = Order(
            what=what, kind=kind, topic=topic.name, name=name, warehouse=str(warehouse), has_indexes=has_indexes, **more
        )
        return driver.ask(order)

    topic.send(records(rng, known, rng.randint(1, 6)))
    ask("run")
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(1, 2)):
            version = contract.change()
            known[schemas.register(topic.subject, version)] = version
        if rng.random() < 0.3:
            assert ask("verify")
        if rng.random() < 0.8:
            topic.send(records(rng, known, rng.randint(1, 6)))
        if cuts.random() < 0.5:
            try:
                ask("run", ending=an_ending(cuts))  # where there is nothing to commit it ends as it should
            except (KilledError, InterruptedRunError):
                if cuts.random() < 0.3:
                    assert ask("verify")
        is_current = ask("run", records_max=rng.choice((None, 2)))
        while not is_current:
            is_current = ask("run")
    assert ask("verify")
    ask("run", "fresh")
    found, fresh = ask("rows"), ask("rows", "fresh")
    assert found == fresh
    assert sorted(found[0]) == sorted(fresh[0]) if found else True
    own = (
        {"id"} | set(contract_of(topic).field_names) if kind != "state" else {"id", "events", "total", "last", "known"}
    )
    without = [{name: value for name, value in row.items() if name in own} for row in found]
    assert sorted(without, key=repr) == sorted(map(ordered(without), map(plain, expected(kind, topic))), key=repr)
    if rng.random() < 0.3:
        ask("rebuild")
        assert ask("rows") == found


def ordered(like: list[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Put the columns of a row in the order of those rows, so that both have one text."""
    names = list(like[0]) if like else []
    return lambda row: {name: row[name] for name in names}
