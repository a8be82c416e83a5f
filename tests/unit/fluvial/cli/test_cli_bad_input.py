"""Every wrong call ends with one clear line on stderr, nothing on stdout and a status that is not 0."""

import re
import subprocess
from pathlib import Path

import pytest
from fluvial_command import FLUVIAL, Cli

from fluvial.cli.old_names import NEW_NAMES

AVSC = '{"type": "record", "name": "A", "fields": [{"name": "a", "type": "long"}]}'

CASES: list[tuple[tuple[str, ...], str]] = [
    (("upp",), "No such command 'upp'.*--help"),
    (("init",), "Missing argument 'DIRECTORY'.*init --help"),
    (("init", "my-platform"), "'my-platform' is no name for a Python package: .*such as my_platform"),
    (("init", "owned"), "owned is not empty: name a new folder, or an empty one"),
    (("init", "file"), "file is a file"),
    (("init", "file/below"), "file/below: Not a directory"),
    (("up", "--brokers", "0"), "--brokers.*fluvial up --help"),
    (("up", "--brokers", "1000"), "--brokers 1000: a local platform has 1 to 64"),
    (("up", "--port", "70000"), "--port 70000"),
    (
        ("up", "--port", "7000", "--registry-port", "7001", "--brokers", "2"),
        r"--registry-port 7001: one port a broker from there on meets those of --port \(7000 to 7001\); choose another",
    ),
    (("up", "--port", "7000", "--registry-port", "7000"), "--registry-port 7000: one port a broker"),
    (("up", "--port", "7000", "--registry-port", "6998", "--brokers", "3"), "--registry-port 6998: one port a broker"),
    (("up", "--colour"), "No such option.*--colour"),
    (("up", "--detach", "--data-dir", "file"), "data directory file: .*--data-dir"),
    (("up", "--detach", "--data-dir", "/proc/none"), "data directory /proc/none: .*--data-dir"),
    (("up", "--detach", "--data-dir", "file/below"), "data directory file/below: .*--data-dir"),
    (("down",), r"no local platform in \.fluvial; start one with `fluvial up`"),
    (("down", "--data-dir", "elsewhere"), "no local platform in elsewhere"),
    (("status", "--json"), r"no local platform in \.fluvial"),
    (("topic", "craete"), "No such command 'craete'"),
    (("topic", "create"), "Missing argument 'TOPIC'.*topic create --help"),
    (("topic", "create", "t", "--config", "retention"), "--config 'retention': write KEY=VALUE"),
    (("topic", "create", "t", "--partitions", "none"), "--partitions"),
    (("topic", "list"), r"no Kafka broker at 127\.0\.0\.1:1 accepts a connection; .*--bootstrap-server"),
    (("topic", "describe", "t"), "no Kafka broker"),
    (("topic", "delete", "t"), "no Kafka broker"),
    (("topic", "list", "--bootstrap-server", "nowhere"), "--bootstrap-server: 'nowhere'.*host:port"),
    (("topic", "produce", "t"), "no Kafka broker"),
    (("topic", "produce", "t", "--file", "none.txt"), "--file none.txt: No such file"),
    (("topic", "produce", "t", "--key-field", "a", "--key-separator", ":"), "--key-field and --key-separator"),
    (("topic", "produce", "t", "--key-separator", ""), "--key-separator"),
    (("topic", "consume", "t"), "no Kafka broker"),
    (("topic", "consume", "t", "--max-messages", "0"), "--max-messages"),
    (("topic", "consume", "t", "--format", "xml"), "--format"),
    (("topic", "consume", "t", "--to-end", "--group", "g"), "--to-end and --group"),
    (("table", "erase", "customers"), "Missing argument 'KEY'"),
    (("table", "replay", "marts.spend"), r"marts\.spend keeps no records of a topic: name a quarantine table"),
    (("table", "replay", "quarantine.orders", "--record", "17"), "--record 17: write partition and offset"),
    (("table", "replay", "quarantine.orders", "--set", "a=1", "--call", "m:f"), "three ways of repairing"),
    (("table", "replay", "quarantine.orders"), "no Kafka broker"),
    (("table", "replay", "marts.a", "marts.b"), "several tables: name their range"),
    (("table", "replay", "state.a", "--offsets", "orders:0"), "write topic, partition, first and last offset as in"),
    (("table", "replay", "state.a", "--offsets", "o:0=9-8"), "the last offset is before the first"),
    (("table", "replay", "state.a", "--offsets", "o:0=1", "--offsets", "o:0=3"), "one range for each partition"),
    (("table", "replay", "state.a", "--from", "2026-01-01"), "give both ends of the range"),
    (("table", "replay", "state.a", "--from", "2026-01-02", "--until", "2026-01-01"), "is not before --until"),
    (("table", "replay", "state.a", "--from", "1h", "--until", "0s", "--offsets", "o:0=1"), "of offsets or of time"),
    (("table", "replay", "state.a", "--offsets", "o:0=1", "--dry-run"), "the other options of quarantines"),
    (("table", "replay", "quarantine.o", "--offsets", "o:0=1"), "a quarantine table has no range"),
    (("schema", "list"), r"schema registry at http://127\.0\.0\.1:1 does not answer"),
    (("schema", "list", "--registry-url", "host:8081"), "--registry-url: 'host:8081'.*http://"),
    (("schema", "register", "a.avsc"), "a.avsc is a file: name its subject"),
    (("schema", "register", "none"), "none: no such file or folder"),
    (("schema", "register", "."), "owner.toml: is missing"),
    (("schema", "register", "file", "--subject", "s-value"), "file: not an Avro schema"),
    (("schema", "check", ".", "--subject", "s-value"), "--subject s-value"),
    (("schema", "transfer", "s-value"), "name the new owner with --to"),
    (("schema", "owner", "s-value"), r"schema registry at http://127\.0\.0\.1:1 does not answer"),
    (("run", "state.x", "--project", "no_such_project"), "no project module no_such_project"),
    (("run", "--conf", "x"), "--conf 'x': write KEY=VALUE"),
    (
        (
            "table",
            "adopt",
        ),
        "Missing argument 'TABLE",
    ),
    (("table", "adopt", "state.x", "--from", "now"), "--from"),
    (("table", "adopt", "state.x", "--project", "no_such_project"), "no project module no_such_project"),
    (("table", "verify", "state.x", "--project", "no_such_project"), "no project module no_such_project"),
    (("sql",), "Missing argument 'QUERY'"),
    (("sql", "  "), "QUERY is empty"),
    (("sql", "select 1", "--format", "xml"), "--format"),
    (("demo", "--until", "soon"), "--until"),
    (("demo", "--secure"), "--secure is for the local platform: leave out --bootstrap-server"),
    (("ui", "--port", "0"), "--port"),
    (("ui", "--host", "0.0.0.0"), r"other machines reach 0\.0\.0\.0, the page starts runs .*--allow-plaintext"),
    (("ui", "--host", "no host"), "--host no host: .*write an address"),
    (("ui", "--certificate", "file"), "--certificate file: .*PEM file"),
]


@pytest.mark.parametrize(("words", "says"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_wrong_call_is_told_in_one_line(cli: Cli, words: tuple[str, ...], says: str) -> None:
    (cli.cwd / "file").write_text("not a folder")
    (cli.cwd / "a.avsc").write_text(AVSC)
    (cli.cwd / "owned").mkdir()
    (cli.cwd / "owned" / "notes").write_text("mine")
    # Port 1 is nobody's; an address in a file stands in for a cluster that is down.
    (cli.cwd / "fluvial.toml").write_text('bootstrap_servers = "127.0.0.1:1"\nregistry_url = "http://127.0.0.1:1"\n')
    line = cli.refused(*words)
    assert re.search(says, line), line
    assert not list(cli.cwd.glob("**/platform.json"))


def test_a_wrong_file_of_settings_is_named(cli: Cli) -> None:
    (cli.cwd / "fluvial.toml").write_text("registry_ur = 1\n")
    assert "fluvial.toml: registry_ur: no such setting; did you mean registry_url?" in cli.refused("topic", "list")
    (cli.cwd / "fluvial.toml").write_text("registry = 1\n")
    assert "fluvial.toml: registry: write a table, [registry] and" in cli.refused("topic", "list")


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    groups = {"", "topic", "topic quarantine", "group", "schema", "cluster", "cluster config", "table"}
    seen = 0
    for group in groups:
        words = group.split()
        listing = cli.ok(*words, "--help").partition("Commands:")[2]
        for command in re.findall(r"^  ([a-z-]+) ", listing, re.MULTILINE):
            if " ".join([*words, command]) not in groups:
                assert "Example:  fluvial" in cli.ok(*words, command, "--help"), command
                seen += 1
    assert seen > 30, "the walk over the commands stopped early"


def test_a_former_name_of_a_command_says_its_new_one(cli: Cli) -> None:
    done = cli.run("verify", "--help")
    assert done.returncode == 0
    assert done.stdout == cli.ok("table", "verify", "--help")
    assert done.stderr == "`fluvial verify` is now `fluvial table verify`; the old name goes in the next release\n"
    assert cli.ok("--debug", "config", "get", "--help") == cli.ok("cluster", "config", "get", "--help")
    for old, new in NEW_NAMES.items():
        assert cli.ok(old, "--help") == cli.ok(*new, "--help")
        assert f"  {old} " not in cli.ok("--help")


def test_a_project_names_the_near_table(cli: Cli) -> None:
    (cli.cwd / "shop.py").write_text(
        "from fluvial.tables import history\norders = history('orders')\nreturns = history('returns')\n"
    )
    line = cli.refused("run", "history.order", "--project", "shop")
    assert "no pipeline 'history.order'" in line
    assert "did you mean history.orders" in line
    assert "history.returns" in cli.refused("run", "xyz", "--project", "shop")


def test_an_answer_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("wb") as out:
        done = subprocess.run([str(FLUVIAL), "version"], stdout=out, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: ")
    assert b"Traceback" not in done.stderr
