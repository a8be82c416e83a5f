"""Topics, schemas and records of a running platform, through the command line alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from fluvial_command import Cli

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ORDERS = [
    {"id": "a", "amount": "12.50", "at": "2013-01-01T05:15:00Z", "note": "grüße"},
    {"id": "b", "amount": "0.01", "at": "2013-01-01T05:16:00Z", "note": None},
    {"id": "a", "amount": "-3.00", "at": "2013-01-01T05:17:00Z", "note": None},
]


def json_lines(rows: list[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def read_json(platform: Cli, topic: str, *more: str) -> list[dict[str, Any]]:
    printed = platform.ok("topic", "consume", topic, "--from-beginning", "--to-end", "--format", "json", *more)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture(scope="module")
def orders(platform: Cli) -> str:
    """A topic of Avro records, keyed by their id."""
    avsc = platform.cwd / "order.avsc"
    avsc.write_text(json.dumps(ORDER))
    platform.ok("topic", "create", "orders", "--partitions", "3", "--config", "fluvial.value.schema.validation=id")
    platform.ok("schema", "register", "order.avsc", "--subject", "orders-value")
    platform.ok(
        "topic", "produce", "orders", "--subject", "orders-value", "--key-field", "id", stdin=json_lines(ORDERS)
    )
    return "orders"


def test_a_topic_lives_from_create_to_delete(platform: Cli) -> None:
    platform.ok("topic", "create", "lives", "--partitions", "2", "--config", "retention.ms=-1")
    assert "lives" in platform.ok("topic", "list", "--format", "names").splitlines()
    listed = json.loads(platform.ok("topic", "list", "--format", "json"))
    [mine] = [each for each in listed if each["topic"] == "lives"]
    assert mine == {
        "topic": "lives",
        "partitions": 2,
        "replication_factor": 1,
        "offsets_held": 0,
        "cleanup_policy": "delete",
    }
    assert json.loads(platform.ok("topic", "list", "--json")) == listed
    platform.ok("topic", "produce", "lives", stdin="a\nb\nc\n")
    described = json.loads(platform.ok("topic", "describe", "lives", "--json"))
    assert described["config"]["retention.ms"] == "-1"
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert sum(each["end_offset"] for each in described["partitions"]) == 3
    drawn = platform.ok("topic", "describe", "lives")
    assert "retention.ms = -1" in drawn
    assert "exists already" in platform.refused("topic", "create", "lives")
    platform.ok("topic", "create", "lives", "--if-not-exists")
    platform.ok("topic", "delete", "lives")
    assert "lives" not in platform.ok("topic", "list", "--format", "names").splitlines()


def test_a_table_in_a_pipe_is_not_cut(platform: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-topic-whose-name-is-longer-than-a-narrow-terminal-is-wide-and-longer-still"
    monkeypatch.setattr(Cli, "environment", platform.environment | {"COLUMNS": "40"})
    platform.ok("topic", "create", name)
    [line] = [line for line in platform.ok("topic", "list").splitlines() if name in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [name, "1", "1", "0", "delete"]
    platform.ok("topic", "delete", name)


@pytest.mark.parametrize(
    "words",
    [("status",), ("schema", "list"), ("topic", "quarantine", "list"), ("cluster", "features"), ("group", "list")],
)
def test_every_answer_has_the_same_option(platform: Cli, words: tuple[str, ...]) -> None:
    json.loads(platform.ok(*words, "--format", "json"))
    assert platform.run(*words, "--format", "table").returncode == 0
    assert "--json" not in platform.ok(*words, "--help")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("topic", "describe", "order"), "no topic 'order' in the cluster; did you mean orders?"),
        (
            ("topic", "delete", "orders", "zzz"),
            "no topic 'zzz' in the cluster; make it with `fluvial topic create zzz`",
        ),
        (("topic", "create", "a b"), "cannot create topic 'a b'"),
        (("topic", "create", "new", "--config", "retention.ms=soon"), "retention.ms"),
        (("topic", "create", "new", "--config", "colour=red"), "colour"),
        (("topic", "create", "new", "--replication-factor", "3"), "cannot create topic 'new'"),
        (("topic", "produce", "order"), "no topic 'order' in the cluster; did you mean orders?"),
        (("topic", "consume", "order"), "no topic 'order' in the cluster; did you mean orders?"),
        (("topic", "produce", "orders", "--subject", "order-value"), "order-value"),
        (("topic", "consume", "orders", "--subject", "order-value"), "order-value"),
        (("topic", "produce", "orders", "--schema", "none.avsc"), "none.avsc: cannot be read"),
    ],
)
def test_a_wrong_name_or_value_is_told(platform: Cli, orders: str, words: tuple[str, ...], says: str) -> None:
    assert says in platform.refused(*words)
    assert orders in platform.ok("topic", "list", "--format", "names").splitlines()
    assert "new" not in platform.ok("topic", "list", "--format", "names").splitlines()


def test_avro_goes_in_and_comes_out(platform: Cli, orders: str) -> None:
    rows = read_json(platform, orders)
    assert sorted((row["value"] for row in rows), key=ORDERS.index) == ORDERS
    assert {row["key"] for row in rows if row["value"]["id"] == "a"} == {"a"}
    assert len({row["partition"] for row in rows if row["key"] == "a"}) == 1
    assert {row["topic"] for row in rows} == {orders}
    assert all(isinstance(row["schema_id"], int) and row["timestamp"].endswith("Z") for row in rows)


def test_what_consume_prints_produce_reads(platform: Cli, orders: str) -> None:
    platform.ok("topic", "create", "copies")
    printed = platform.ok("topic", "consume", orders, "--from-beginning", "--to-end")
    platform.ok("topic", "produce", "copies", "--subject", "orders-value", stdin=printed)
    assert sorted((row["value"] for row in read_json(platform, "copies")), key=ORDERS.index) == ORDERS


def test_a_registered_schema_file_is_taken_and_another_is_not(platform: Cli, orders: str) -> None:
    platform.ok("topic", "produce", orders, "--schema", "order.avsc", stdin=json_lines([]))
    other = platform.cwd / "other.avsc"
    other.write_text(json.dumps({**ORDER, "fields": ORDER["fields"][:1]}))
    assert "not registered under subject orders-value" in platform.refused(
        "topic", "produce", orders, "--schema", "other.avsc"
    )
    [row, *_] = read_json(platform, orders, "--schema", "other.avsc")
    assert set(row["value"]) == {"id"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"id": 5}, "line 2: id: 5 is not a string"),
        ({"id": "x", "amount": "1.00", "at": "never"}, "line 2: at: 'never' is no ISO 8601 timestamp"),
        ({"id": "x"}, "line 2: amount: is missing"),
        (
            {"id": "x", "amount": "1.234", "at": 0},
            "line 2: amount: '1.234' has 3 decimal places, and the schema allows 2",
        ),
    ],
)
def test_a_line_that_does_not_fit_is_named_and_those_before_it_are_kept(
    platform: Cli, tmp_path: Path, line: dict[str, Any], says: str
) -> None:
    topic = f"lines-{abs(hash(says))}"
    platform.ok("topic", "create", topic)
    (platform.cwd / "order.avsc").write_text(json.dumps(ORDER))
    platform.ok("schema", "register", "order.avsc", "--subject", f"{topic}-value")
    told = platform.refused(
        "topic", "produce", topic, "--subject", f"{topic}-value", stdin=json_lines([ORDERS[0], line, ORDERS[1]])
    )
    assert says in told
    assert "1 record" in told
    assert [row["value"] for row in read_json(platform, topic)] == ORDERS[:1]


def test_the_broker_refuses_what_its_topic_does_not_allow(platform: Cli, orders: str) -> None:
    before = len(read_json(platform, orders))
    line = platform.refused("topic", "produce", orders, stdin="not framed\n")
    assert "refused a record for 'orders'" in line
    assert len(read_json(platform, orders)) == before


def test_plain_strings_with_keys(platform: Cli) -> None:
    platform.ok("topic", "create", "plain")
    platform.ok("topic", "produce", "plain", "--key-separator", ":", stdin=b"k:v:w\nl:\n\xff:\xfe\n")
    assert platform.ok(
        "topic", "consume", "plain", "--from-beginning", "--max-messages", "2", "--key-separator", "="
    ) == ("k=v:w\nl=\n")
    last = read_json(platform, "plain")[-1]
    assert (last["key_base64"], last["value_base64"]) == ("/w==", "/g==")
    assert "line 2: holds no ':'" in platform.refused(
        "topic", "produce", "plain", "--key-separator", ":", stdin="a:b\nc\n"
    )


def test_tombstones(platform: Cli, orders: str) -> None:
    platform.ok("topic", "create", "gone")
    platform.ok("topic", "produce", "gone", "--subject", "orders-value", "--key-separator", "|", stdin="a|null\n")
    [row] = read_json(platform, "gone")
    assert (row["key"], row["value"]) == ("a", None)


def test_a_group_goes_on_where_it_stopped(platform: Cli) -> None:
    platform.ok("topic", "create", "shared")
    platform.ok("topic", "produce", "shared", stdin="1\n2\n3\n4\n")
    words = ("topic", "consume", "shared", "--group", "readers", "--from-beginning", "--max-messages", "2")
    assert platform.ok(*words) == "1\n2\n"
    assert platform.ok(*words) == "3\n4\n"
    assert platform.ok("topic", "consume", "shared", "--group", "readers", "--timeout", "1") == ""


def test_an_undecodable_value_is_named_and_printed_raw_on_request(platform: Cli, orders: str) -> None:
    platform.ok("topic", "create", "broken")
    platform.ok("topic", "produce", "broken", stdin=b"\0\0\x0f\x42\x3fxyz\n")
    line = platform.refused("topic", "consume", "broken", "--from-beginning", "--to-end")
    assert "broken partition 0 offset 0: the value schema id 999999 is not in the registry" in line
    assert platform.ok("topic", "consume", "broken", "--from-beginning", "--to-end", "--format", "raw").endswith(
        "xyz\n"
    )


def test_contracts_of_a_folder(platform: Cli) -> None:
    folder = platform.cwd / "contracts" / "shop"
    folder.mkdir(parents=True)
    (folder / "owner.toml").write_text(
        'producer = "shop"\ncontact = "shop@example.org"\nsubjects = ["sales-value"]\ntopics = ["sales"]\n'
    )
    avsc = folder / "sales.avsc"
    avsc.write_text(json.dumps(ORDER))
    assert platform.ok("schema", "check", "contracts") == "sales-value: new\n"
    first = platform.ok("schema", "register", "contracts")
    assert first.startswith("sales-value: schema id ")
    assert "already existed" in platform.ok("schema", "register", "contracts")
    listed = json.loads(platform.ok("schema", "list", "--json"))
    assert [row["version"] for row in listed if row["subject"] == "sales-value"] == [1]
    avsc.write_text(json.dumps({**ORDER, "fields": [*ORDER["fields"], {"name": "must", "type": "string"}]}))
    done = platform.run("schema", "check", "contracts")
    assert done.returncode == 1
    assert "sales-value: incompatible\n  {errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'" in done.stdout
    assert "sales.avsc (sales-value): not to be shipped like this" in done.stderr
    assert "sales.avsc" in platform.refused("schema", "register", "contracts")
    done = platform.run("schema", "check", str(avsc), "--subject", "sales-value", "--format", "json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert [(each["subject"], each["status"]) for each in told["subjects"]] == [("sales-value", "incompatible")]


def test_contracts_are_owned_without_any_setting_up(platform: Cli) -> None:
    for name in ("bakery", "mill"):
        folder = platform.cwd / "owned" / name
        folder.mkdir(parents=True)
        contract = f'producer = "{name}"\ncontact = "{name}@example.org"\nsubjects = ["{name}-value"]\n'
        (folder / "owner.toml").write_text(f'{contract}topics = ["{name}"]\n')
        (folder / f"{name}.avsc").write_text('"string"')
    platform.ok("schema", "register", "owned")
    kept = platform.data_dir / "registry-credentials.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert {"bakery", "mill"} <= json.loads(kept.read_text())["producers"].keys()

    # Somebody who has not got the passwords is told whom to ask; the platform's own user need not know of them.
    other = Cli(platform.cwd / "elsewhere")
    other.cwd.mkdir()
    new = ("schema", "register", "new.avsc", "--subject", "bakery-value")
    for each in (platform, other):
        (each.cwd / "new.avsc").write_text('["null", "string"]')
    refused = other.refused(*new, "--registry-url", f"http://127.0.0.1:{platform.registry_port}")
    assert "is owned by bakery (bakery@example.org)" in refused
    platform.ok(*new)

    assert platform.ok("schema", "transfer", "bakery-value", "--to", "mill").endswith("bakery: bakery -> mill\n")
    told = platform.ok("schema", "owner", "bakery-value").splitlines()
    assert told[0] == "bakery-value: mill, mill@example.org"
    assert [line.partition("  bakery: ")[2] for line in told[1:]] == ["nobody -> bakery", "bakery -> mill"]
    assert "mill, mill@example.org\n  owns bakery-value" in platform.ok("schema", "producer", "mill")
    assert "has no owner" in platform.refused("schema", "owner", "never-value")


def test_what_a_subject_says_and_how_it_came_about(platform: Cli) -> None:
    new = {**ORDER, "fields": [*ORDER["fields"], {"name": "gift", "type": "boolean", "default": False}]}
    for name, schema in (("first.avsc", ORDER), ("second.avsc", new)):
        (platform.cwd / name).write_text(json.dumps(schema))
    platform.ok("schema", "register", "first.avsc", "--subject", "gifts-value")
    told = platform.ok("schema", "diff", "gifts-value", "--file", "second.avsc").splitlines()
    assert told == [
        "gifts-value: version 1 -> second.avsc",
        "  added    gift: boolean, default false",
        "BACKWARD: compatible",
    ]
    platform.ok("schema", "register", "second.avsc", "--subject", "gifts-value")
    assert "decimal(9, 2)" in platform.ok("schema", "show", "gifts-value")
    listed = json.loads(platform.ok("schema", "log", "gifts-value", "--format", "json"))["versions"]
    assert [each["version"] for each in listed] == [1, 2]
    platform.ok("schema", "export", "gifts-value", "--to", "gifts.jsonl")
    assert platform.ok("schema", "import", "gifts.jsonl").count(", already existed") == 2


def test_another_cluster_by_flags(platform: Cli, orders: str, tmp_path: Path) -> None:
    elsewhere = Cli(tmp_path)
    status = platform.status()
    cluster = ("--bootstrap-server", status["bootstrap_servers"])
    registry = ("--registry-url", status["registry_url"])
    assert orders in elsewhere.ok("topic", "list", "--format", "names", *cluster).splitlines()
    assert len(read_json(elsewhere, orders, *cluster, *registry)) == len(ORDERS)
    assert "orders-value" in elsewhere.ok("schema", "list", *registry)
    (tmp_path / "fluvial.toml").write_text(f'bootstrap_servers = "{status["bootstrap_servers"]}"\n')
    assert orders in elsewhere.ok("topic", "list", "--format", "names").splitlines()
    assert not elsewhere.data_dir.exists()


def test_every_broker_of_three_checks_the_schema(cli: Cli) -> None:
    cli.up("--brokers", "3")
    (cli.cwd / "order.avsc").write_text(json.dumps(ORDER))
    cli.ok("topic", "create", "spread", "--partitions", "6", "--config", "fluvial.value.schema.validation=id")
    described = json.loads(cli.ok("topic", "describe", "spread", "--json"))
    assert {each["leader"] for each in described["partitions"]} == {0, 1, 2}
    cli.ok("schema", "register", "order.avsc", "--subject", "spread-value")
    rows = [{**ORDERS[0], "id": str(number)} for number in range(60)]
    cli.ok("topic", "produce", "spread", "--subject", "spread-value", "--key-field", "id", stdin=json_lines(rows))
    found = read_json(cli, "spread")
    assert {row["partition"] for row in found} == set(range(6))
    assert sorted(row["value"]["id"] for row in found) == sorted(row["id"] for row in rows)
    for key in "abcdefgh":
        line = cli.refused(
            "topic", "produce", "spread", "--key-separator", ":", stdin=b"%s:\0\0\x0f\x42\x3fx\n" % key.encode()
        )
        assert "refused a record" in line
    cli.ok("down")
    cli.ok("up", "--detach")
    cli.ok("topic", "produce", "spread", "--subject", "spread-value", "--key-field", "id", stdin=json_lines(rows))
    assert len(read_json(cli, "spread")) == 2 * len(rows)


KEYED_ORDER = {**ORDER, "fluvial.key": "id"}


@pytest.fixture(scope="module")
def keyed_orders(platform: Cli) -> str:
    """A topic of payload validation whose contract names the key."""
    (platform.cwd / "keyed.avsc").write_text(json.dumps(KEYED_ORDER))
    platform.ok("topic", "create", "keyed", "--config", "fluvial.value.schema.validation=payload")
    platform.ok("schema", "register", "keyed.avsc", "--subject", "keyed-value")
    return "keyed"


def test_the_key_is_the_field_that_the_contract_names(platform: Cli, keyed_orders: str) -> None:
    platform.ok("topic", "produce", keyed_orders, "--subject", "keyed-value", stdin=json_lines(ORDERS))
    assert [row["key"] for row in read_json(platform, keyed_orders)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (b"k:not framed\n", "the value is not in the registry's wire format"),
        (b"k:\0\0\0\0\x63x\n", "schema id 99 of the value is not registered"),
    ],
)
def test_a_refused_record_has_its_reason(platform: Cli, keyed_orders: str, lines: bytes, says: str) -> None:
    line = platform.refused("topic", "produce", keyed_orders, "--key-separator", ":", stdin=lines)
    assert says in line
    assert "0 records were written" in line


def test_a_record_without_the_key_of_its_contract_is_refused(platform: Cli, keyed_orders: str) -> None:
    line = platform.refused("topic", "produce", keyed_orders, stdin="no key\n")
    assert "the key is null, and the key of a record is its field id" in line
    good = json.dumps(ORDERS[0])
    platform.ok("topic", "create", "mixed", "--config", "cleanup.policy=compact")
    line = platform.refused("topic", "produce", "mixed", "--key-field", "id", stdin=f'{good}\n{{"id": null}}\n{good}\n')
    assert "a compacted topic takes no record without a key; 0 records were written" in line
    assert read_json(platform, "mixed") == [], "those that were in order were not sent again"
    events = [json.loads(each) for each in platform.ok("cluster", "events", "--format", "json").splitlines()]
    (event,) = (each for each in events if (each.get("cause"), each.get("topic")) == ("no_key", keyed_orders))
    assert event["kind"] == "records_refused"
    assert "its field id" in event["text"]
