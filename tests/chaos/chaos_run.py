"""
Real processes under faults: `make chaos`.

    python tests/chaos/chaos_run.py --seconds 60 --seed 7          a storm of random faults
    python tests/chaos/chaos_run.py --seconds 120 --storms 20      one after the other, of this seed and those after it
    python tests/chaos/chaos_run.py --peer kafka                   the same against Apache Kafka
    python tests/chaos/chaos_run.py --brokers 5
    python tests/chaos/chaos_run.py --secure                       every link by SASL_SSL, and clients by their rights
    python tests/chaos/chaos_run.py --voters 3                     voters in processes of their own
    python tests/chaos/chaos_run.py --scenarios F-02 F-16          stories with an expected end, by their names
    python tests/chaos/chaos_run.py --scenarios all
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import scenarios_clients  # noqa: F401 enters its scenarios
import scenarios_copies  # noqa: F401
import scenarios_groups  # noqa: F401
import scenarios_isolation  # noqa: F401
import scenarios_leaders  # noqa: F401
import scenarios_registry  # noqa: F401
from chaos_cluster import KINDS, Cluster
from chaos_scenarios import SCENARIOS, Clusters, Stage
from chaos_storm import Report, storm

STORM_SECONDS = 60.0


def say(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


def main() -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--peer", choices=sorted(KINDS), default="ours", help="whose nodes (default: ours)")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--voters", type=int, default=0, help="voters of the quorum that are no brokers")
    parser.add_argument("--secure", action="store_true", help="TLS, sign-in and ACLs everywhere; storms only")
    parser.add_argument("--seconds", type=float, default=STORM_SECONDS, help="how long the storm lasts; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storms", type=int, default=1, help="how many, of this seed and those after it (default: 1)")
    parser.add_argument("--scenarios", nargs="+", metavar="NAME", help="instead of a storm: names, or all")
    parser.add_argument("--keep", type=Path, help="folder for the history and the logs of the nodes")
    options = parser.parse_args()
    if options.secure and (options.scenarios or options.peer != "ours"):
        parser.error("--secure is for storms of our nodes: scenarios look at what passes")
    with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
        if options.scenarios:
            return run_scenarios(options.scenarios, options.peer, Path(scratch), say)
        return run_storms(options, Path(scratch), say)


def run_scenarios(names: Sequence[str], kind: str, scratch: Path, say: Callable[[str], None]) -> int:
    """Tell scenarios one after the other; a line for each, and what it noted."""
    chosen = list(names)
    if chosen == ["all"]:
        chosen = [each.name for each in SCENARIOS.values() if kind == "ours" or not each.only_ours]
    if unknown := [name for name in chosen if name not in SCENARIOS]:
        say(f"no such scenario: {' '.join(unknown)}; there are {' '.join(SCENARIOS)}")
        return 2
    clusters = Clusters(scratch, kind)
    failed: list[str] = []
    fates: dict[tuple[str, str], str] = {}
    try:
        for name in chosen:
            began = time.monotonic()
            stage = Stage(name, clusters)
            say(f"{name}  {SCENARIOS[name].title}")
            try:
                SCENARIOS[name].tell(stage)
                outcome = "as expected"
            except Exception:
                failed.append(name)
                outcome = f"NOT as expected\n{traceback.format_exc()}\n{clusters.spoilt()}"
            fates.update(stage.fates)
            for note in stage.notes:
                say(f"      {note}")
            say(f"      {outcome}, {time.monotonic() - began:.0f} s")
    finally:
        clusters.close()
    if fates:
        say(table_of_fates(fates))
    say(
        f"{len(chosen) - len(failed)} of {len(chosen)} scenarios as expected{': not ' * bool(failed)}{' '.join(failed)}"
    )
    return bool(failed)


def table_of_fates(fates: Mapping[tuple[str, str], str]) -> str:
    """The fate of an acknowledged record, a row for each setting and a column for each fault."""
    settings, faults = (list(dict.fromkeys(each[at] for each in fates)) for at in (0, 1))
    rows = [("", *faults), *((setting, *(fates.get((setting, fault), "") for fault in faults)) for setting in settings)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def run_storms(options: argparse.Namespace, scratch: Path, say: Callable[[str], None]) -> int:
    """Storms one after the other; of several, what they came to together and the seeds that broke a promise."""
    together = Report()
    broken = []
    for seed in range(options.seed, options.seed + options.storms):
        keep = None if options.keep is None else options.keep / f"seed-{seed}" if options.storms > 1 else options.keep
        try:
            report = run_storm(options, seed, scratch / f"seed-{seed}", keep, say)
        except Exception:
            if options.storms == 1:
                raise
            report = Report(broken=[traceback.format_exc()])
        say(str(report))
        together += report
        if report.broken:
            broken.append(seed)
    if options.storms > 1:
        say(f"\n{options.storms} storms, {len(broken)} with broken promises{': seeds' * bool(broken)} {broken or ''}")
        say(str(together))
    return bool(broken)


def run_storm(
    options: argparse.Namespace, seed: int, folder: Path, keep: Path | None, say: Callable[[str], None]
) -> Report:
    """One storm on a cluster of its own; the history and the logs of the nodes are left in `keep`."""
    cluster = Cluster(
        folder, kind=options.peer, brokers=options.brokers, separate_voters=options.voters, secure=options.secure
    )
    say(f"storm of {options.seconds:.0f} s, seed {seed}, {options.brokers} brokers, {options.voters} voters")
    try:
        cluster.start()
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        return storm(cluster, seconds=options.seconds, seed=seed, say=say, keep=keep)
    finally:
        if keep is not None:
            for node in cluster.nodes.values():
                (keep / f"node-{node.name}.log").write_text(node.log_text())
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
