"""What `fluvial topic consume` reads and how it prints it, from a broker in this process."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from fluvial_command import Cli

from fluvial.cli.topic.record_range import RecordRange
from log_broker import embedded

HOUR_MS = 3_600_000
FIRST_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""

Consume = Callable[..., str]


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with embedded() as one:
        yield one.bootstrap_servers


@pytest.fixture(scope="module")
def consume(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Consume:
    """Runs `fluvial topic consume hours …`: two partitions of six records, one an hour, each fourth an hour late."""
    cli = Cli(tmp_path_factory.mktemp("consume"))
    cluster = ("--bootstrap-server", broker)
    cli.ok("topic", "create", "hours", "--partitions", "2", *cluster)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(6):
        for partition in range(2):
            producer.produce(
                "hours",
                json.dumps({"n": number, "odd": number % 2 == 1, "at": {"place": f"p{partition}"}}).encode(),
                key=number.to_bytes(4, "big"),
                partition=partition,
                timestamp=FIRST_MS + HOUR_MS * (5 if number == 3 else number),
                headers=[("a", b"1"), ("b", None)] if number == 0 else [],
            )
    producer.flush()
    return lambda *words: cli.ok("topic", "consume", "hours", *cluster, *words)


@pytest.fixture
def refused(broker: str, tmp_path: Path) -> Consume:
    cli = Cli(tmp_path)
    return lambda *words: cli.refused("topic", "consume", "hours", "--bootstrap-server", broker, *words)


def places(printed: str) -> list[tuple[int, int]]:
    return sorted((int(p), int(o)) for p, o in (line.split(":") for line in printed.splitlines()))


PLACE = ("--template", r"%p:%o\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--partition", "1", "--offset", "4", "--to-end"), [(1, 4), (1, 5)]),
        (("--offset", "-1", "--to-end"), [(0, 5), (1, 5)]),
        (("--partition", "0", "--offset", "-100", "--to-end"), [(0, n) for n in range(6)]),
        (("--partition", "0", "--offset", "100", "--to-end"), []),
        (("--partition", "0", "--offset", "end", "--to-end"), []),
        (("-p", "0", "-o", "beginning", "-n", "2"), [(0, 0), (0, 1)]),
        (("-p", "1", "--from", "2026-01-01T04:00:00Z", "--to-end"), [(1, 3), (1, 4), (1, 5)]),
        (("-p", "1", "--until", "2026-01-01T01:00:00"), [(1, 0)]),
        (("-p", "0", "--from", "2026-01-01T02:00:00Z", "--until", "2026-01-01T05:00:00Z"), [(0, 2), (0, 4)]),
        (("--from", "1d", "--to-end"), []),
        (("--from-beginning", "--filter", "n=3", "--to-end"), [(0, 3), (1, 3)]),
        (("--from-beginning", "--filter", "odd=true", "--filter", "at.place=p1", "--to-end"), [(1, 1), (1, 3), (1, 5)]),
        (("--from-beginning", "--filter", "odd=1", "--to-end"), []),
        (("-p", "0", "--from-beginning", "--filter", "odd=false", "-n", "2"), [(0, 0), (0, 2)]),
    ],
)
def test_a_range_of_records(consume: Consume, words: tuple[str, ...], expected: list[tuple[int, int]]) -> None:
    assert places(consume(*PLACE, *words)) == expected


ONE = ("--partition", "0", "--offset", "0", "--max-messages", "1")
VALUE = '{"n": 0, "odd": false, "at": {"place": "p0"}}'


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--headers",), f"a:1,b:NULL\t{VALUE}\n"),
        (("--headers", "--offset", "1"), 'NO_HEADERS\t{"n": 1, "odd": true, "at": {"place": "p0"}}\n'),
        (("--key-format", "int", "--key-separator", " "), f"0 {VALUE}\n"),
        (("--key-format", "hex", "--key-separator", "|"), f"00000000|{VALUE}\n"),
        (("--key-format", "base64", "--key-separator", "|"), f"AAAAAA==|{VALUE}\n"),
        (
            ("--template", r"%t/%p/%o %k %K %s %S %T %h %%\t\x41\\|", "--key-format", "int"),
            f"hours/0/0 0 4 {VALUE} {len(VALUE)} {FIRST_MS} a=1,b=NULL %\tA\\|",
        ),
    ],
)
def test_how_a_record_is_printed(consume: Consume, words: tuple[str, ...], expected: str) -> None:
    assert consume(*ONE, *words) == expected


def test_json_has_the_key_as_it_is_read(consume: Consume) -> None:
    row: dict[str, Any] = json.loads(
        consume(*ONE, "--offset", "1", "--format", "json", "--key-format", "int", "--headers")
    )
    assert (row["key"], row["headers"], row["timestamp"]) == (1, [], "2026-01-01T01:00:00.000Z")


def test_a_field_that_no_record_has_is_named(broker: str, tmp_path: Path, consume: Consume) -> None:
    done = Cli(tmp_path).run(
        "topic", "consume", "hours", "--bootstrap-server", broker, "--from-beginning", "--to-end", "--filter", "m=3"
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "none of the 12 records read has a field 'm'\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--partition", "2"), "topic 'hours' has no partition 2; it has 2, from 0 on"),
        (("--offset", "soon"), "--offset 'soon': write a number, -N for the last N, beginning or end"),
        (("--offset", "3", "--from-beginning"), "--from-beginning, --offset and --from: give one of them"),
        (("--offset", "3", "--from", "1h"), "--from-beginning, --offset and --from: give one of them"),
        (("--from", "yesterday"), "--from 'yesterday': write a time such as"),
        (("--from", "1h", "--until", "2h"), "--from 1h is not before --until 2h"),
        (("--filter", "n"), "--filter 'n': write FIELD=VALUE"),
        (("--filter", "n=1", "--filter", "n=2"), "n cannot have two values"),
        (("--filter", "n=1", "--format", "raw"), "leave out --format raw"),
        (("--group", "g", "--offset", "0"), "fluvial group reset"),
        (("--template", "%x"), "no %x; there are %t %p %o %k %K %s %S %T %h %%"),
        (("--template", "%"), "a % at the end"),
        (("--template", "\\q"), r"no escape \q"),
        (("--template", "%s", "--format", "json"), "leave out --format json"),
        (("--from-beginning", "--key-format", "avro"), "offset 0: the key has no schema id"),
    ],
)
def test_a_wrong_option_is_told(refused: Consume, consume: Consume, words: tuple[str, ...], says: str) -> None:
    assert says in refused(*words)


def test_relative_times_count_back_from_now() -> None:
    wanted = RecordRange.of(partitions=None, offset=None, from_beginning=False, since="2h", until="1h")
    assert wanted.since is not None
    assert wanted.until is not None
    assert (wanted.until - wanted.since).total_seconds() == pytest.approx(3600, abs=1)
    assert (datetime.now(UTC) - wanted.until).total_seconds() == pytest.approx(3600, abs=5)
