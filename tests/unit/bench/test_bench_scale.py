"""The arithmetic of `make bench-scale`, and each of its loads for a moment."""

import io
import os

import pytest
from rich.console import Console

from tests.bench.clients.measure import nodes
from tests.bench.scale.__main__ import GROUPS, run
from tests.bench.scale.density import bend, density, kib_a_partition
from tests.bench.scale.driving import RECORDS, Load, RecordsMissingError, Sample, measure, median, rounds
from tests.bench.scale.knee import Step, bound_of, knee, moved
from tests.bench.scale.machine import pin
from tests.bench.scale.survival import killed


def step(clients: int, rate: float, p99_ms: float) -> Step:
    return Step(clients=clients, rate=rate, p99_ms=p99_ms)


def test_the_knee_is_the_first_step_whose_tail_is_over_the_bound() -> None:
    steps = [step(1, 100, 1.0), step(2, 200, 2.0), step(4, 400, 4.0), step(8, 800, 4.1), step(16, 1600, 1.0)]
    assert bound_of(steps) == 4.0
    assert knee(steps, bound_of(steps)) == steps[3]
    assert knee(steps, 0.5) == steps[0]


def test_the_knee_is_the_first_step_that_adds_less_than_a_tenth() -> None:
    steps = [step(1, 100, 1.0), step(2, 120, 1.0), step(4, 131, 1.0), step(8, 400, 9.0)]
    assert knee(steps, 4.0) == steps[2]


@pytest.mark.parametrize(
    "steps", [[], [step(1, 100, 1.0)], [step(1, 100, 1.0), step(2, 200, 4.0)]], ids=["none", "one", "no bend"]
)
def test_a_curve_that_does_not_bend_has_no_knee(steps: list[Step]) -> None:
    assert knee(steps, 4.0) is None


def test_what_is_said_of_two_knees() -> None:
    near, far = step(64, 1, 1), step(96, 1, 1)
    assert "1.5 times as far right" in moved(near, far)
    assert "did not move right" in moved(near, near)
    assert "did not move right" in moved(far, near)
    assert "three do not bend" in moved(near, None)
    assert "no knee" in moved(None, None)


def test_medians_are_of_each_figure_by_itself() -> None:
    found = [Sample(1, 9, 3, 1, 1), Sample(2, 8, 1, 1, 3), Sample(3, 7, 2, 1, 2)]
    assert median(found) == Sample(2, 8, 2, 1, 2)
    assert found[0].records_rate == RECORDS


def test_rounds_alternate_between_the_sides() -> None:
    order: list[str] = []

    def side(name: str) -> Sample:
        order.append(name)
        return Sample(len(order), 1, 1, 1, 1)

    found = rounds(3, {name: lambda name=name: side(name) for name in "ab"})
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [found[name].rate for name in "ab"] == [4, 3]


def test_missing_records_fail_the_run_and_not_the_other_groups() -> None:
    ran: list[int] = []

    def losing(console: Console, *, count: int, seconds: float) -> None:
        raise RecordsMissingError("2 records were acknowledged, the log has 1")

    def fine(console: Console, *, count: int, seconds: float) -> None:
        ran.append(count)

    console = Console(file=io.StringIO())
    assert run({"losing": losing, "fine": fine}, console, count=2, seconds=1.0) == 1
    assert ran == [2]
    assert run({"fine": fine}, console, count=2, seconds=1.0) == 0
    assert all(group.__doc__ for group in GROUPS.values())


@pytest.mark.parametrize("think_seconds", [0.0, 0.002], ids=["at once", "thinking"])
def test_clients_are_answered_and_the_log_has_what_they_sent(think_seconds: float) -> None:
    with nodes(1) as one:
        sample = measure(one, Load(partitions=2, clients=3, seconds=0.3, think_seconds=think_seconds))
        core = min(os.sched_getaffinity(0))
        pin(one, [core])
        assert os.sched_getaffinity(one.members[0].process.pid) == {core}
    assert sample.rate > 0
    assert 0 < sample.p50_ms <= sample.p99_ms
    if think_seconds:
        assert sample.rate < 3 / think_seconds * 1.5


def test_nothing_that_was_acknowledged_goes_with_a_broker() -> None:
    with nodes(3) as three:
        copied = measure(three, Load(partitions=3, clients=3, seconds=0.2, copies=3))
        after = killed(three, 0.2)
        assert sum(member.is_running for member in three.members) == 2
    assert copied.rate > 0
    assert after.missing == 0
    assert 0 < after.afterwards <= after.acknowledged
    assert after.seconds > 0


def test_density_bends_where_the_tail_passes_three_times_the_first() -> None:
    assert bend([(100, 1.0), (1_000, 3.0), (5_000, 3.1), (10_000, 2.0)]) == 5_000
    assert bend([(100, 1.0), (1_000, 3.0)]) is None
    assert kib_a_partition({100: 50.0, 1_000: 52.0, 2_148: 54.0}) == 2.0


def test_a_broker_is_asked_on_more_and_more_partitions() -> None:
    shown = io.StringIO()
    density(Console(file=shown, width=120), count=1, seconds=0.2, sizes=(2, 40))
    assert "synced: p99 passes 3 times" in shown.getvalue()
    assert "KiB of memory a partition" in shown.getvalue()
