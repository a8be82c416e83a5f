"""
The metadata quorum in simulation: seeds hold, the same seed is the same run, and broken rules are noticed.

SIM_SEEDS=A:B runs other or more seeds; `make sim` and `make sim-mutations` are the long forms.
"""

import os

import pytest
from hash_seeds import answers_under_two_hash_seeds
from mutation_hunt import broken, hunt
from quorum_mutations import MUTATIONS

from log_broker.sim import cli
from log_broker.sim.cli import make_quorum
from log_broker.sim.runner import run_seed, run_seeds, shrink

FIRST, LAST = map(int, os.environ.get("SIM_SEEDS", "0:6").split(":"))

# Those that the first seeds find; the whole table is `make sim-mutations`.
QUICK = (
    "a fetch ends an epoch",
    "acknowledges before fsync",
    "an epoch is taken from anybody",
    "answers before it is committed",
    "changes voters before its epoch counts",
    "counts observers",
    "does not sync its log",
    "follower truncates too much",
    "forgets its epoch at restart",
    "forgets its vote at restart",
    "half is a majority",
    "keeps counting the first voters",
    "leader counts what it has not synced",
    "leader does not look for divergence",
    "no check quorum",
    "no pre vote",
    "snapshot of less than it says",
    "snapshot without its voters",
    "takes answers to earlier requests",
    "votes before it is remembered",
)


@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_every_promise_is_kept(seed: int) -> None:
    report = run_seed(make_quorum, seed)
    assert report.failure is None, f"python -m log_broker sim --seed {seed}: {report.failure.message}"


@pytest.mark.parametrize("mutation", QUICK)
def test_a_broken_rule_is_noticed(mutation: str) -> None:
    assert hunt(MUTATIONS, make_quorum, mutation, 12).check is not None


def test_the_quick_mutations_are_of_the_table() -> None:
    assert set(QUICK) < set(MUTATIONS)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_replaces_what_is_there(mutation: str) -> None:
    with broken(MUTATIONS, mutation):
        pass


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Also under another hash seed: no decision hangs on the order of a set."""
    program = (
        "from log_broker.sim.cli import make_quorum; from log_broker.sim.runner import run_seed; "
        "report = run_seed(make_quorum, 4); print(report.events, report.acknowledged, report.virtual_us)"
    )
    assert len(answers_under_two_hash_seeds(program)) == 1


def test_a_failing_seed_is_told_with_the_faults_it_needs_only(capsys: pytest.CaptureFixture[str]) -> None:
    with broken(MUTATIONS, "acknowledges before fsync"):
        report = run_seed(make_quorum, 0)
        assert report.failure is not None
        # The first commit shows it, before any fault: all can be left out.
        assert shrink(make_quorum, report) == frozenset(range(len(make_quorum(0, 0).draw_faults())))
        assert cli.main(["--seed", "0"]) == 1
    told = capsys.readouterr().out
    assert "committed is durable" in told
    assert "--seed 0 --without 0,1," in told
    assert "FetchRequest" in told


def test_seeds_run_side_by_side_give_the_reports_of_seeds_run_alone() -> None:
    assert list(run_seeds(make_quorum, [1, 2], jobs=2)) == [run_seed(make_quorum, seed) for seed in (1, 2)]


def test_the_summary_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--seeds", "2:4"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("2 seeds in ")
    assert "0 failed" in told.out
    assert "2/2 seeds" in told.err


@pytest.mark.parametrize("arguments", [[], ["--seeds", "3"], ["--seeds", "4:4"], ["--seed", "1", "--without", "x"]])
def test_what_makes_no_sense_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert "usage" in capsys.readouterr().err
