"""
Whole clusters in simulation: seeds hold, the same seed is the same run, and broken rules are noticed.

CLUSTER_SEEDS=A:B runs other or more seeds; `make sim` and `make sim-mutations` are the long forms.
"""

import os

import pytest
from cluster_mutations import MUTATIONS
from hash_seeds import answers_under_two_hash_seeds
from mutation_hunt import broken, hunt

from log_broker.core.raft.effects import Propose
from log_broker.core.raft.leader import Leader
from log_broker.sim.checks import cost_checks
from log_broker.sim.checks.cost_checks import LONG_TURN
from log_broker.sim.cli import make_cluster
from log_broker.sim.kernel.kernel import InvariantError
from log_broker.sim.runner import run_seed
from log_broker.sim.world import broker_process

# Those that the first seeds find, one for each thing that is promised; the whole table is `make sim-mutations`, which
# the rota runs.
QUICK = (
    "acknowledges before fsync",
    "does not name aborted transactions",
    "followers forget producers",
    "goes on without enough in sync",
    "group offsets are not replayed",
    "takes repeated batches",
    "the leader shrinks the isr by itself",
)
# Seeds that notice what the first ones do not.
LATE = {"a folder does not say durably whose it is": 54}

FIRST, LAST = map(int, os.environ.get("CLUSTER_SEEDS", "0:3").split(":"))


# Seeds that have found something; what it was stands in docs/simulation.md. The rota runs the others too.
FOUND = (129, 400_081)
FOUND_TOO = (
    269,
    800_197,
    739_945_038,
    6,
    300_015,
    400_027,
    600_044,
    700_027,
    800_008,
    739_945_008,
    739_947_028,
    739_947_062,
    739_947_180,
    27,
    11,
)


@pytest.mark.parametrize(
    "seed",
    [*range(FIRST, LAST), *FOUND, *(pytest.param(seed, marks=pytest.mark.rota) for seed in FOUND_TOO)],
)
def test_every_promise_is_kept(seed: int) -> None:
    report = run_seed(make_cluster, seed)
    assert report.failure is None, f"python -m log_broker sim --world cluster --seed {seed}: {report.failure.message}"


@pytest.mark.parametrize("mutation", QUICK)
def test_a_broken_rule_is_noticed(mutation: str) -> None:
    assert hunt(MUTATIONS, make_cluster, mutation, 4).check is not None


@pytest.mark.parametrize("mutation", LATE)
def test_a_broken_rule_is_noticed_by_its_seed(mutation: str) -> None:
    with broken(MUTATIONS, mutation):
        failure = run_seed(make_cluster, LATE[mutation]).failure
    assert failure is not None
    assert failure.check == "a topic shows its own records"


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_replaces_what_is_there(mutation: str) -> None:
    with broken(MUTATIONS, mutation):
        pass


def test_a_long_turn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_checks, "TURN_SECONDS_MAX", 0.0)
    failure = run_seed(make_cluster, FIRST).failure
    assert failure is not None
    assert failure.check == LONG_TURN


def test_a_turn_that_is_long_once_was_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def stalled(name: str, cpu_seconds: float) -> None:
        if not runs:
            runs.append(name)
            raise InvariantError(LONG_TURN, name)

    monkeypatch.setattr(broker_process, "check_turn", stalled)
    assert run_seed(make_cluster, FIRST).failure is None
    assert runs


def test_an_assertion_that_a_broker_goes_on_from_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata log begins again from its disk after any error, as it does after one of the disk."""

    def propose(self: Leader, event: Propose) -> None:
        raise AssertionError("a rule of the quorum")

    monkeypatch.setattr(Leader, "propose", propose)
    failure = run_seed(make_cluster, FIRST).failure
    assert failure is not None
    assert failure.check == "a process raises nothing"
    assert "a rule of the quorum" in failure.message


def test_a_number_out_of_bounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_checks, "EPOCHS_MAX", 1)
    failure = run_seed(make_cluster, FIRST).failure
    assert failure is not None
    assert failure.check == "numbers that last are within their bounds"


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Also under another hash seed: no decision of a broker hangs on the order of a set."""
    program = (
        "from log_broker.sim.cli import make_cluster; from log_broker.sim.runner import run_seed; "
        "report = run_seed(make_cluster, 3, trace_lines_max=10**6); "
        "print(report.events, report.acknowledged, report.virtual_us, report.story)"
    )
    assert len(answers_under_two_hash_seeds(program)) == 1
