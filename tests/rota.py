"""
What is too long for every run of the tests, in turn: `make rota MINUTES=20`.

    python tests/rota.py --minutes 20     those that have waited longest, as many as fit
    python tests/rota.py --list           when each passed last
    python tests/rota.py storm kills      those by name

`tests/rota.toml` says when and at which commit each passed last; whoever runs the rota commits it. The seed is the
day's, and is said when something fails.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
PASSED = Path(__file__).with_name("rota.toml")
OVERDUE_DAYS = 21
LAST_LINES = 40  # of a turn that failed, which are printed again
LEFT_OUT = 77  # the status of one that this machine lacks something for, as automake has it


@dataclass(frozen=True)
class Turn:
    """One thing of the rota. `{seed}` and `{seed_end}` may stand in its words, `{seed}` in its environment.

    `minutes` is what two cores take; `programs` are those that it needs beside what the tests need.
    """

    name: str
    minutes: float
    words: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()

    @property
    def lacking(self) -> list[str]:
        """The programs that this machine does not have."""
        return [program for program in self.programs if shutil.which(program) is None]

    def settings(self, seed: int) -> dict[str, str]:
        """Return what is added to its environment."""
        return {name: value.format(seed=seed) for name, value in self.environment.items()}

    def command(self, seed: int) -> list[str]:
        """Return the words of its process."""
        return [sys.executable, *(word.format(seed=seed, seed_end=seed + 200) for word in self.words)]


def _pytest(*words: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)


def _spark(names: Sequence[str]) -> list[str]:
    return [f"tests/spark/test_spark_{name}.py" for name in names]


ROTA = {"FLUVIAL_ROTA": "1"}
SECURED = ROTA | {"FLUVIAL_TEST_SECURED": "1"}
EVERY_WAY = (
    "adoption",
    "broken_tables",
    "duplicates",
    "exactly_once",
    "explain_row",
    "from_offset_0",
    "partition_growth",
    "publishing",
    "quarantine_replay",
    "rebuild",
    "reducers",
    "replay",
    "row_swap",
    "serve",
    "tables",
    "thrift",
)
MARTS = ("aggregates", "changes_here", "continuous_checks", "key_refresh", "row_refresh", "windows")
PURE = ("sim", "fuzz", "chaos", "parity")  # and nothing that is compiled
CLIENTS = ("-m", "tests.compat.run")
TURNS = (
    Turn("scenarios", 14, _pytest("tests/chaos/test_chaos_scenarios.py"), {"FLUVIAL_CHAOS": "all"}),
    Turn("storm", 6, ("tests/chaos/chaos_run.py", "--seconds", "240", "--seed", "{seed}")),
    Turn("storm of five", 6, ("tests/chaos/chaos_run.py", "--seconds", "240", "--brokers", "5", "--seed", "{seed}")),
    Turn("storm with voters", 6, ("tests/chaos/chaos_run.py", "--seconds", "240", "--voters", "3", "--seed", "{seed}")),
    Turn("storm, secured", 6, ("tests/chaos/chaos_run.py", "--seconds", "240", "--secure", "--seed", "{seed}")),
    Turn("siege", 5, ("tests/chaos/siege_run.py",)),
    Turn("strangers", 6, ("tests/fuzz/fuzz_sign_in.py", "--connections", "100000", "--seed", "{seed}")),
    Turn("overload", 3, ("tests/chaos/overload_run.py", "--seconds", "60")),
    Turn("kills", 6, ("tests/chaos/kill_run.py", "--rounds", "15", "--seed", "{seed}")),
    Turn("kills of the main job", 4, _pytest("tests/e2e/test_kill.py"), ROTA),
    Turn("runners of packages", 2, _pytest("tests/package/test_runners.py"), ROTA),
    Turn("rehearsal", 4, _pytest("tests/unit/fluvial/cli/test_cli_doctor_rehearsal.py"), ROTA),
    Turn("loss of a broker", 4, _pytest("tests/e2e/test_broker_loss.py", "tests/e2e/test_coordinator_loss.py"), ROTA),
    # On `fluvial up --secure --brokers 3`.
    Turn("main job, secured", 5, _pytest("tests/e2e/test_main_job.py"), SECURED),
    Turn("tutorial, secured", 5, _pytest("tests/e2e/test_tutorial.py"), SECURED),
    Turn("loss of a broker, secured", 4, _pytest("tests/e2e/test_broker_loss.py"), SECURED),
    Turn("kills of the main job, secured", 6, _pytest("tests/e2e/test_kill.py"), SECURED),
    Turn("runs from the page", 3, _pytest("tests/e2e/test_web_page.py"), ROTA),
    Turn("page of a secured platform", 2, _pytest("tests/e2e/test_secured_page.py"), ROTA),
    Turn("kill of a driver of tables", 6, _pytest("tests/e2e/test_kill_tables.py"), ROTA),
    Turn("kills of tables", 10, ("tests/e2e/kill_tables_run.py", "--kills", "4", "--seed", "{seed}")),
    Turn("kills of executors", 12, ("tests/e2e/kill_tables_run.py", "--kills", "4", "--executors", "--seed", "{seed}")),
    Turn("kills of marts", 15, ("tests/e2e/kill_marts_run.py", "--kills", "3", "--executors", "--seed", "{seed}")),
    Turn(
        "simulated cluster",
        8,
        ("-m", "log_broker", "sim", "--world", "cluster", "--seeds", "{seed}:{seed_end}", "--jobs", "2"),
    ),
    Turn("seeds that found something", 2, _pytest("-m", "rota", "tests/sim/test_sim_cluster.py"), ROTA),
    Turn(
        "simulated quorum",
        4,
        ("-m", "log_broker", "sim", "--world", "quorum", "--seeds", "{seed}:{seed_end}", "--jobs", "2"),
    ),
    Turn("mutations of the quorum", 12, ("tests/sim/quorum_mutations.py",)),
    Turn("mutations of the cluster", 18, ("tests/sim/cluster_mutations.py",)),
    Turn("mutations of rules", 20, ("tests/mutations/rules_mutations.py",)),
    Turn("kills at each step of a commit", 6, _pytest("tests/spark/test_spark_killed_commits.py"), ROTA),
    Turn("Delta sink certified", 6, _pytest("tests/spark/test_spark_certified_sink.py"), ROTA),
    Turn(
        "erasures",
        14,
        _pytest("-m", "rota", "tests/spark/test_spark_erasure.py", "tests/spark/test_spark_killed_erasure.py"),
        ROTA,
    ),
    Turn("random marts", 8, _pytest("tests/spark/test_spark_random_marts.py"), ROTA),
    Turn("random windows", 8, _pytest("tests/spark/test_spark_random_windows.py"), ROTA),
    Turn("random joins by time", 8, _pytest("tests/spark/test_spark_random_joins.py"), ROTA),
    Turn("streaming queries killed", 6, _pytest("-m", "rota", "tests/spark/test_spark_streaming.py"), ROTA),
    Turn("parts made again", 10, _pytest("-m", "rota", "tests/spark/test_spark_replay_parts.py"), ROTA),
    Turn("Nexmark", 3, _pytest("-m", "rota", "tests/spark/test_spark_nexmark.py"), ROTA),
    Turn("random marts of rows", 8, _pytest("tests/spark/test_spark_random_rows.py"), ROTA),
    Turn(
        "tables every way",
        8,
        _pytest("-n2", "-m", "rota", *_spark(EVERY_WAY)),
        ROTA,
    ),
    Turn("fresh answers", 5, _pytest(*_spark(("fresh", "fresh_marts"))), ROTA),
    Turn("marts every way", 8, _pytest("-n2", "-m", "rota", *_spark(MARTS)), ROTA),
    Turn(
        "histories of contracts",
        10,
        _pytest("-n2", "tests/spark/test_spark_schema_histories.py"),
        {**ROTA, "FLUVIAL_HISTORIES": "1:61"},
    ),
    Turn("clients, one broker", 12, (*CLIENTS, "--skip", "librdkafka-tests")),
    Turn("librdkafka's tests", 28, (*CLIENTS, "librdkafka-tests")),
    Turn("clients, secured", 14, (*CLIENTS, "--secure", "--skip", "librdkafka-tests")),
    Turn("librdkafka's tests, secured", 28, (*CLIENTS, "--secure", "librdkafka-tests")),
    Turn("clients, three brokers", 15, (*CLIENTS, "--brokers", "3", "--skip", "streams")),
    Turn("streams, three brokers", 6, (*CLIENTS, "--brokers", "3", "streams")),
    Turn("daemon for minutes", 6, _pytest("tests/e2e/test_daemon.py"), ROTA),
    Turn("kept Spark", 4, _pytest("tests/e2e/test_kept_spark.py"), ROTA),
    Turn("journey", 5, _pytest("tests/e2e/test_journey.py"), ROTA),
    Turn("rolling upgrade", 4, _pytest("tests/e2e/test_rolling_upgrade.py"), ROTA),
    Turn("Unity Catalog", 4, _pytest("tests/e2e/test_unity_catalog.py"), ROTA),
    Turn("Hive metastore", 4, _pytest("tests/e2e/test_hive_metastore.py"), ROTA),
    Turn("object store", 5, _pytest("tests/e2e/test_object_store.py"), ROTA),
    Turn("main job, all of the year", 5, _pytest("tests/e2e/test_main_job.py"), ROTA),
    Turn("tutorial", 4, _pytest("-m", "rota", "tests/e2e/test_tutorial.py"), ROTA),
    Turn("page on windows", 2, _pytest("tests/spark/test_spark_windows_page.py"), ROTA),
    Turn("installed whole", 8, _pytest("tests/e2e/test_tutorial.py"), {"FLUVIAL_INSTALL": "all"} | ROTA),
    Turn(
        "clean machine",
        12,
        _pytest("tests/e2e/test_tutorial.py"),
        {"FLUVIAL_INSTALL": "machine"} | ROTA,
        ("debootstrap",),
    ),
    Turn("installed core", 2, _pytest("tests/package/test_core_install.py"), ROTA),
    Turn("Python 3.12", 11, ("tests/other_pythons.py", "3.12")),
    Turn("Python 3.13", 11, ("tests/other_pythons.py", "3.13")),
    Turn("newest versions", 5, ("tests/newest_versions.py",)),
    Turn(
        "Sail beside Spark",
        8,
        _pytest("tests/spark/test_spark_sail.py"),
        {**ROTA, "FLUVIAL_SEED": "{seed}"},
    ),
    Turn("Spark Connect", 4, _pytest("tests/spark/test_spark_connect.py"), ROTA),
    Turn("other clusters", 12, _pytest("tests/e2e/test_existing_clusters.py"), {"FLUVIAL_TEST_CLUSTERS": "1"}),
    Turn("parity with Kafka", 5, _pytest("tests/parity"), {"FLUVIAL_TEST_KAFKA": "1"}),
    Turn(
        "Python alone",
        10,
        _pytest("-n2", "tests/unit/log_broker", "tests/unit/fluvial/registry", *(f"tests/{each}" for each in PURE)),
        {"FLUVIAL_PURE": "1"},
    ),
    Turn(
        "broken requests",
        6,
        ("tests/fuzz/fuzz_run.py", "--cost", "--part", "bulk", "--requests", "500000", "--seed", "{seed}"),
    ),
    Turn("costs of fields", 6, ("tests/fuzz/fuzz_run.py", "--cost", "--part", "fields")),
    Turn(
        "costs of states",
        8,
        ("tests/fuzz/fuzz_run.py", "--cost", "--part", "states", "--part", "pairs", "--part", "shapes"),
    ),
    Turn("costs of volleys", 5, ("tests/fuzz/fuzz_run.py", "--cost", "--part", "volleys", "--seed", "{seed}")),
    Turn("costs at a quorum", 3, ("tests/fuzz/fuzz_run.py", "--cost", "--part", "quorum", "--part", "schemas")),
    Turn("schemas", 5, ("tests/fuzz/fuzz_schemas.py",)),
    Turn("registry", 5, ("tests/fuzz/fuzz_registry.py",)),
)


def main() -> int:
    """Run what is asked for; return how many failed."""
    parser = argparse.ArgumentParser(description="What is too long for every run of the tests, in turn.")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to go on (default: 20)")
    parser.add_argument("--list", action="store_true", help="only say when each passed last")
    parser.add_argument("--seed", type=int, default=date.today().toordinal() * 1000)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these instead of those that have waited longest")
    options = parser.parse_args()
    unknown = set(options.names) - {turn.name for turn in TURNS}
    if unknown:
        parser.error(f"the rota has no {', '.join(sorted(unknown))}: see --list")
    console = Console()
    passed = _passed()
    if options.list:
        console.print(_table(passed))
        return 0
    end = time.monotonic() + options.minutes * 60
    failed = []
    # Equally long waiting ones come in another order each day: what never passes keeps no other from its turn.
    drawn = random.Random(options.seed).sample(TURNS, len(TURNS))
    for turn in sorted(drawn, key=lambda turn: passed.get(turn.name, {}).get("passed", date.min)):
        if turn.name not in options.names if options.names else time.monotonic() + turn.minutes * 60 > end:
            continue
        if turn.lacking:
            console.print(f"rota: {turn.name} is left out: {', '.join(turn.lacking)} is not installed", style="yellow")
            continue
        command = turn.command(options.seed)
        console.rule(f"rota: {turn.name}")
        environment = os.environ | turn.settings(options.seed)
        status, last_lines = _run(command, environment)
        if status == LEFT_OUT:
            continue
        if status == 0:
            # Read again: others may have written since, for what takes hours is run beside other work.
            passed = _passed() | {turn.name: {"passed": date.today(), "commit": _commit()}}
            _write(passed)
        else:
            settings = [f"{name}={value}" for name, value in turn.settings(options.seed).items()]
            again = " ".join([*settings, *command[1:]])
            failed.append((f"rota: {turn.name} failed with seed {options.seed}; again: {again}", last_lines))
    console.print(_table(passed))
    # Last, and with what it said at its end: of a long run, often the end alone is kept.
    for line, last_lines in failed:
        console.print(*last_lines, sep="", end="", markup=False, highlight=False, soft_wrap=True)
        console.print(line, style="red", soft_wrap=True, highlight=False)
    return len(failed)


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, Sequence[str]]:
    """Pass on what a turn prints; return its status and its last lines."""
    said = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    with said:
        for line in said.stdout or ():
            print(line, end="", flush=True)
            last_lines.append(line)
    return said.returncode, last_lines


def _passed() -> dict[str, dict[str, date | str]]:
    return tomllib.loads(PASSED.read_text()) if PASSED.exists() else {}


def _write(passed: dict[str, dict[str, date | str]]) -> None:
    lines = ["# When and at which commit each thing of the rota passed last; see tests/rota.py."]
    for turn in TURNS:
        if found := passed.get(turn.name):
            lines.append(f'"{turn.name}" = {{ passed = {found["passed"]}, commit = "{found["commit"]}" }}')
    PASSED.write_text("\n".join(lines) + "\n")


def _commit() -> str:
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.strip()


def _table(passed: dict[str, dict[str, date | str]]) -> Table:
    table = Table("rota", "minutes", "passed", "commit", "days ago")
    for turn in TURNS:
        found = passed.get(turn.name, {})
        last = found.get("passed")
        days = (date.today() - last).days if isinstance(last, date) else None
        style = "yellow" if days is None or days > OVERDUE_DAYS else None
        table.add_row(
            turn.name,
            f"{turn.minutes:g}",
            str(last or "never"),
            str(found.get("commit", "")),
            "" if days is None else str(days),
            style=style,
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
