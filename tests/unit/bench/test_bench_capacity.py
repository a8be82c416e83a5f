"""What `make bench-capacity` calculates and simulates: against sums done by hand, and against what must always hold."""

import io
from dataclasses import replace
from math import inf

import pytest
from rich.console import Console

from tests.bench.capacity.__main__ import GROUPS, parser
from tests.bench.capacity.decisions import held_mib, lose, typical
from tests.bench.capacity.layout import Layout, Shape, add_topics, brokers_up, layout
from tests.bench.capacity.odds import chance_in_power_cut, losses_a_year
from tests.bench.capacity.profile import MEASURED, Curve, Demand, Machine, Measured
from tests.bench.capacity.rates import HOUR, MINUTE, NOTHING_FAILS, YEAR_SECONDS, Rates
from tests.bench.capacity.simulation import DISK, MACHINE, RACK, Outcome, Setup, Simulation
from tests.bench.capacity.sizing import Sizing

SHAPE = Shape(brokers=30, partitions=300, racks=5)
SETUP = Setup(bytes_a_broker=1e12, written_a_broker=1e7, spare_bytes=1e8, round_seconds=0.01)
OFTEN = Rates(disk=2, machine=20, rack=5, rolls=12)


def ran(
    shape: Shape = SHAPE, rates: Rates = OFTEN, setup: Setup = SETUP, *, years: float = 1, seed: int = 1
) -> Outcome:
    return Simulation(layout(shape), rates, setup, seed).run(years)


def line(*points: tuple[float, float]) -> Curve:
    return Curve(points, "by hand")


def test_a_curve_is_a_straight_line_between_its_points_and_beyond() -> None:
    curve = line((10, 1), (20, 3), (40, 4))
    assert [curve.at(size) for size in (10, 15, 30, 40, 60)] == [1, 2, 3.5, 4, 5]
    assert curve.at(0) == 0  # never below nothing
    assert [curve.reaches(value) for value in (2, 3.5, 5)] == [15, 30, 60]


def test_a_cluster_is_what_one_works_out_by_hand() -> None:
    profile = replace(
        MEASURED,
        one_copy_us=line((100, 1), (1_000, 1)),
        three_copies_us=line((100, 3), (1_000, 3)),
        read_us=line((100, 0.5), (1_000, 0.5)),
        framing_bytes=Measured(0, "by hand"),
        disk_bytes=Measured(50e6, "by hand"),
        busy_most=Measured(0.5, "by hand"),
        rest_share=line((10, 0.01), (100, 0.1)),
        told_seconds=line((10, 0.1), (100, 1)),
        change_seconds=line((10, 0.1), (100, 1)),
        partition_us=Measured(100, "by hand"),
    )
    machine = Machine(network_bytes=100e6, network_most=0.5, disk_most=0.5, space_bytes=1e12)
    demand = Demand(records=1e6, copies=3, consumers=2, retention_seconds=10_000)
    sizing = Sizing(demand=demand, profile=profile, machine=machine)
    assert sizing.cores == pytest.approx(3 + 2 * 0.5)  # a million records at 4 µs
    assert sizing.limits == {
        "CPU": 8,  # 4 cores, each half busy
        "disk bandwidth": 12,  # 3 x 100 MB/s on 25 MB/s each
        "disk space": 6,  # 3 x 100 MB/s x 10,000 s = 3 TB on 0.5 TB each
        "network in": 6,  # 300 MB/s on 50 MB/s each
        "network out": 8,  # (2 followers + 2 consumers) x 100 MB/s
        "partitions": 1,
        "copies": 3,
    }
    assert (sizing.binding, sizing.brokers) == ("disk bandwidth", 12)
    assert sizing.partitions == 120
    assert sizing.replicas_a_broker == 30
    assert sizing.loss_seconds() == pytest.approx(0.12 + 30 * 12 * 100e-6)  # told to 12 brokers
    assert sizing.loss_seconds(8) == pytest.approx(3 * 0.12 + 8 * 30 * 12 * 100e-6)  # eight go in three rounds
    assert sizing.busy == pytest.approx(1 / 3)
    assert sizing.busy_of_heir == pytest.approx(1 / 3 + 2 / 12 / 2)  # 2 µs a record led, by two heirs
    # CPU: two thirds of a core at 1 µs for 100 B; disk: 50 - 25 MB/s; network: 100 - 400/12 MB/s.
    assert sizing.spares == pytest.approx({"CPU": 1e8 * 2 / 3, "disk": 25e6, "network": 100e6 - 400e6 / 12})
    assert sizing.rebuild_alone_seconds == pytest.approx(3e12 / 12 / 25e6)
    assert sizing.failover_seconds == pytest.approx(9 + 0.12)


def test_more_is_never_less() -> None:
    loads = [Sizing(demand=Demand(records=load)) for load in (1e6, 1e7, 1e8)]
    assert [each.brokers for each in loads] == sorted(each.brokers for each in loads)
    wider = Sizing(demand=Demand(records=1e8, record_bytes=1_000))
    assert all(wider.limits[limit] >= loads[-1].limits[limit] for limit in wider.limits)
    assert Sizing(demand=Demand(records=1e6, in_batches=False)).cores > 100 * loads[0].cores


def test_each_measured_figure_names_its_row() -> None:
    assert all(row for row in MEASURED.rows().values())


def test_outages_add_up_to_what_is_published() -> None:
    rates = Rates()
    down = rates.machine * (rates.short_share * rates.short_seconds + (1 - rates.short_share) * rates.long_seconds)
    assert 1 - down / YEAR_SECONDS == pytest.approx(rates.available)


def test_the_layout_is_the_products() -> None:
    image = brokers_up(SHAPE)
    add_topics(image, SHAPE)
    found = layout(SHAPE)
    placed = [each.replicas for topic in image.topics.values() for each in topic.partitions]
    assert found.replicas.tolist() == [list(replicas) for replicas in placed]
    assert sum(len(held) for held in found.held) == 3 * SHAPE.partitions
    for broker, held in enumerate(found.held):
        assert (found.replicas[held] == broker).any(axis=1).all()
    racks = SHAPE.rack_of[found.replicas]
    assert all(len(set(each)) == 3 for each in racks.tolist())


def test_what_is_counted_of_a_layout() -> None:
    made = Layout(Shape(brokers=5, partitions=3), [(0, 1, 2), (2, 1, 0), (2, 3, 4)])
    assert made.copysets() == 2
    assert [made.partners(broker) for broker in range(5)] == [2, 2, 4, 2, 2]


def test_a_decision_is_the_products_and_leaves_the_image() -> None:
    image = brokers_up(SHAPE)
    add_topics(image, SHAPE)
    before = image.version
    found = lose(image, 3)
    assert found.changes == len(layout(SHAPE).held[3]) + 1
    assert found.heirs >= 1
    assert image.version == before
    assert held_mib(image) > 300 * 100 / 2**20  # of 300 partitions, a hundred bytes each at least
    assert typical([found, replace(found, most=100), replace(found, most=50)]).most == 50


def test_nothing_happens_to_a_cluster_that_never_fails() -> None:
    outcome = ran(rates=NOTHING_FAILS)
    assert outcome.available == 1
    assert not outcome.failures
    assert outcome.controller_seconds == 0


@pytest.mark.parametrize("is_careful", [False, True])
def test_every_failure_ends(is_careful: bool) -> None:
    slow = replace(SETUP, is_careful=is_careful, spare_bytes=1.1e7)  # so that some fail again while they catch up
    run = Simulation(layout(SHAPE), OFTEN, slow, 3)
    outcome = run.run(2)
    assert min(outcome.failures[kind] for kind in (DISK, MACHINE, RACK)) > 10
    assert 0 < outcome.available < 1
    assert not run.reasons.any()
    assert (run.in_sync == 3).all()
    assert (run.copies == 3).all()


def test_one_outage_takes_what_one_works_out_by_hand() -> None:
    """One rack of one, so that every broker is in it: all partitions are below their minimum while it lasts."""
    shape = replace(SHAPE, racks=1)
    outcome = ran(shape, replace(NOTHING_FAILS, rack=20, rack_seconds=HOUR), years=1)
    times = outcome.seconds_to_all[RACK]
    assert outcome.failures[RACK] * shape.brokers >= len(times) > 0
    minutes = sum(times) / MINUTE / shape.brokers * shape.partitions
    assert outcome.below_minutes == pytest.approx(minutes, rel=0.02)


def test_equal_seeds_give_equal_years_and_others_do_not() -> None:
    assert ran(seed=5) == ran(seed=5)
    assert ran(seed=5) != ran(seed=6)


def test_a_layout_changes_no_failures() -> None:
    assert ran().failures == ran(replace(SHAPE, told=False)).failures


def test_fewer_copies_lose_more() -> None:
    lost = [ran(replace(SHAPE, copies=copies), replace(NOTHING_FAILS, disk=60), years=4).lost for copies in (1, 2, 3)]
    assert lost[0] > lost[1] > lost[2]


def test_losses_are_as_often_as_their_rate_says() -> None:
    """With one copy each disk takes all that it holds: as many as there are of them, but for those not replaced yet."""
    outcome = ran(replace(SHAPE, copies=1), replace(NOTHING_FAILS, disk=3), years=20)
    assert outcome.lost == pytest.approx(20 * 3 * SHAPE.partitions, rel=0.1)


def test_racks_that_are_told_keep_partitions_up() -> None:
    rates = replace(NOTHING_FAILS, rack=5)
    assert ran(rates=rates).below_minutes < ran(replace(SHAPE, told=False), rates).below_minutes / 2


def test_careful_restarts_wait_for_those_that_are_out() -> None:
    rates = replace(NOTHING_FAILS, machine=20, rolls=12, restart_seconds=10 * MINUTE)
    alone = ran(rates=replace(rates, rolls=0), years=3).below_minutes
    more, less = (
        ran(rates=rates, setup=replace(SETUP, is_careful=is_careful), years=3).below_minutes - alone
        for is_careful in (False, True)
    )
    assert 0 < less < 0.6 * more  # what fails during a restart nobody foresees


def test_a_slower_operator_leaves_a_lost_disk_for_longer() -> None:
    rates = replace(NOTHING_FAILS, disk=2)
    soon, late = (ran(rates=rates, setup=replace(SETUP, operator_seconds=hours * HOUR)) for hours in (1, 24))
    assert late.seconds_at(DISK, 0.5) - soon.seconds_at(DISK, 0.5) == pytest.approx(23 * HOUR, rel=0.01)
    assert soon.seconds_at(DISK, 0.5) == pytest.approx(HOUR + 1e12 / 1e8, rel=0.01)
    shared = ran(rates=rates, setup=replace(SETUP, is_shared=True))
    assert shared.seconds_at(DISK, 0.99) < soon.seconds_at(DISK, 0.99)


def test_the_controller_falls_behind_when_a_rack_goes() -> None:
    rates = replace(NOTHING_FAILS, rack=5)
    one, many = (ran(rates=rates, setup=replace(SETUP, changes_a_round=changes)) for changes in (1, 50))
    assert one.queue_most > 3 * SHAPE.brokers // SHAPE.racks  # what comes while others wait stands behind them
    assert one.wait_most == pytest.approx(one.queue_most * SETUP.round_seconds, abs=SETUP.round_seconds)
    assert many.wait_most < one.wait_most
    # 6 brokers of a rack with 30 partitions each, which all come back and go once: a second for each partition.
    heavy = ran(rates=rates, setup=replace(SETUP, partition_seconds=1.0))
    assert heavy.controller_seconds - one.controller_seconds == pytest.approx(2 * 6 * 30 * one.failures[RACK], rel=0.1)


def test_disks_alone_lose_as_often_as_the_sum_says() -> None:
    """Pairs of disks that fail twenty times a year each, beside what a simulation of them loses."""
    rates = replace(NOTHING_FAILS, disk=20)
    outcome = ran(replace(SHAPE, copies=2), rates, years=60)
    rebuilt = outcome.seconds_at(DISK, 0.5) / YEAR_SECONDS
    assert outcome.lost / 60 == pytest.approx(SHAPE.partitions * losses_a_year(2, 20, rebuilt), rel=0.2)


def test_a_power_cut_takes_what_has_no_broker_left() -> None:
    made = Layout(Shape(brokers=5, partitions=2), [(0, 1, 2), (2, 3, 4)])
    assert chance_in_power_cut(made, 2 / 5) == 0
    # Three of five are gone: each of the two sets is one of ten that may be the three.
    assert chance_in_power_cut(made, 3 / 5) == pytest.approx(2 / 10, rel=0.1)


def test_a_machine_that_is_given_up_is_missed_for_less_long() -> None:
    rates = replace(NOTHING_FAILS, machine=5, short_share=0)
    waited, given_up = (ran(rates=rates, setup=replace(SETUP, given_up_seconds=most)) for most in (inf, 0.0))
    # Those that return just before are copied a tenth longer.
    assert 1e12 / 1e8 <= given_up.seconds_at(MACHINE, 1.0) < 1.11 * 1e12 / 1e8
    assert waited.seconds_at(MACHINE, 1.0) > 2 * given_up.seconds_at(MACHINE, 1.0)
    assert given_up.below_minutes < waited.below_minutes


def test_every_table_is_printed() -> None:
    words = ["--brokers", "30", "--partitions", "300", "--racks", "5", "--years", "0.5"]
    shown = io.StringIO()
    for group in GROUPS.values():
        group(Console(file=shown, width=240), parser().parse_args(words))
    assert "100 M/s" in shown.getvalue()
    assert "nan" not in shown.getvalue()
