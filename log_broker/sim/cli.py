"""`python -m log_broker sim`: run the simulation of one seed or of many."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from log_broker.sim.quorum.world import QuorumWorld
from log_broker.sim.runner import MakeWorld, Report, World, run_seed, run_seeds, shrink
from log_broker.sim.world.cluster_world import ClusterWorld

STORY_LINES = 60
WHOLE_STORY_LINES = 10_000_000
_BAR_WIDTH = 30


def make_quorum(seed: int, trace_lines_max: int) -> World:
    """Return the metadata quorum of a seed."""
    return QuorumWorld(seed, trace_lines_max=trace_lines_max)


def make_cluster(seed: int, trace_lines_max: int) -> World:
    """Return the cluster of a seed."""
    return ClusterWorld(seed, trace_lines_max=trace_lines_max)


WORLDS: dict[str, MakeWorld] = {"cluster": make_cluster, "quorum": make_quorum}


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; return 1 if a promise was broken."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _tell_one(options.world, options.seed, options.without, whole_story=options.trace)
    first, last = options.seeds
    began = time.monotonic()
    reports = []
    failing: Report | None = None
    for report in _with_progress(run_seeds(WORLDS[options.world], range(first, last), jobs=options.jobs), last - first):
        reports.append(report)
        if report.failure is not None:
            failing = report
            break
    _say(_summary(reports, time.monotonic() - began))
    if failing is None:
        return 0
    return _explain(options.world, failing)


def _tell_one(world: str, seed: int, without: frozenset[int], *, whole_story: bool) -> int:
    lines = WHOLE_STORY_LINES if whole_story else STORY_LINES
    report = run_seed(WORLDS[world], seed, without=without, trace_lines_max=lines)
    if report.failure is not None and not without and not whole_story:
        return _explain(world, report)
    if report.failure is not None:
        _say_failure(report)
        return 1
    if whole_story:
        _say("\n".join(report.story))
    for fault in report.faults:
        _say(f"  {fault}")
    _say(
        f"seed {seed}: {report.events} events, {len(report.faults)} faults, {report.acknowledged} acknowledged, "
        f"{report.virtual_us / 1e6:.1f} virtual seconds: every promise kept"
    )
    return 0


def _explain(world: str, report: Report) -> int:
    """Leave out of a failing seed what it does not need, and tell its end."""
    without = shrink(WORLDS[world], report)
    again = run_seed(WORLDS[world], report.seed, without=without, trace_lines_max=STORY_LINES)
    _say_failure(again)
    left_out = ",".join(map(str, sorted(without)))
    again_with = f" --without {left_out}" if left_out else ""
    _say(f"\nThe whole story: python -m log_broker sim --world {world} --seed {report.seed}{again_with} --trace")
    return 1


def _say_failure(report: Report) -> None:
    assert report.failure is not None
    _say("\n".join(report.story))
    _say(
        f"\nseed {report.seed} breaks a promise after {report.events} events: {report.failure.message}\nwith the faults"
    )
    for fault in report.faults:
        _say(f"  {fault}")


def _summary(reports: Sequence[Report], seconds: float) -> str:
    if not reports:
        return "no seeds"
    events = [report.events for report in reports]
    faults = [len(report.faults) for report in reports]
    acknowledged = [report.acknowledged for report in reports]
    return (
        f"{len(reports)} seeds in {seconds:.0f} s ({len(reports) / seconds:.1f}/s): {sum(events)} events, "
        f"{sum(faults)} faults, {sum(acknowledged)} acknowledged; each at least {min(events)} events, "
        f"{min(faults)} faults, {min(acknowledged)} acknowledged; "
        f"{sum(report.failure is not None for report in reports)} failed"
    )


def _with_progress(reports: Iterator[Report], total: int) -> Iterator[Report]:
    """Draw a bar on a terminal; elsewhere write a line for every tenth part."""
    on_terminal = sys.stderr.isatty()
    tenth = max(1, total // 10)
    began = time.monotonic()
    for done, report in enumerate(reports, 1):
        yield report
        left = (time.monotonic() - began) / done * (total - done)
        if on_terminal:
            bar = "█" * (_BAR_WIDTH * done // total)
            sys.stderr.write(f"\r{bar:░<{_BAR_WIDTH}} {done}/{total} seeds, {left:.0f} s left \x1b[K")
            sys.stderr.write("\n" if done == total else "")
        elif done % tenth == 0:
            sys.stderr.write(f"{done}/{total} seeds, about {left:.0f} s left\n")
        sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m log_broker sim",
        description="Run the broker's state machines on a virtual clock, network and disk, under faults drawn from a "
        "seed, and check every promise after every event. The same seed gives the same run.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this one; if it fails, leave out the faults it does not need")
    which.add_argument("--seeds", type=_range, metavar="A:B", help="run the seeds from A up to, not including, B")
    parser.add_argument("--jobs", type=int, default=1, help="processes for --seeds (default 1)")
    parser.add_argument("--world", choices=sorted(WORLDS), default="quorum", help="what to simulate (default quorum)")
    parser.add_argument(
        "--without", type=_numbers, default=frozenset(), metavar="N,…", help="leave out the faults with these numbers"
    )
    parser.add_argument("--trace", action="store_true", help="print the whole story of --seed")
    return parser


def _range(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    try:
        if not colon or int(first) >= int(last):
            raise ValueError
        return int(first), int(last)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with A below B") from None


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
