"""
Runs seeds: one, many side by side, or one again with fewer faults until each that is left is needed.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Protocol

from log_broker.sim.checks.cost_checks import LONG_TURN
from log_broker.sim.kernel.kernel import InvariantError, Kernel
from log_broker.sim.kernel.nemesis import Fault

EVENTS_MIN = 2_000
FAULTS_MIN = 5
ACKNOWLEDGED_MIN = 100


class World(Protocol):
    """A system under simulation, of one seed."""

    kernel: Kernel
    faults_done: list[Fault]

    @property
    def acknowledged(self) -> int:
        """How many operations clients were told to be done."""
        ...

    def draw_faults(self) -> list[Fault]: ...

    def run(self, faults: list[Fault]) -> None:
        """Go through the whole story; raises InvariantError."""
        ...


MakeWorld = Callable[[int, int], World]  # (seed, trace lines to keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """`check` is the name of the promise that was broken."""

    check: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of one seed; `story` is what was traced of it."""

    seed: int
    events: int
    faults: tuple[Fault, ...]
    acknowledged: int
    virtual_us: int
    failure: Failure | None
    story: tuple[str, ...]


def run_seed(
    make_world: MakeWorld, seed: int, *, without: frozenset[int] = frozenset(), trace_lines_max: int = 0
) -> Report:
    """Run one seed, leaving the faults with these numbers out; the same arguments give the same run."""
    report = _run(make_world, seed, without, trace_lines_max)
    if report.failure is not None and report.failure.check == LONG_TURN:
        return _run(make_world, seed, without, trace_lines_max)  # what the code costs comes again, a stall does not
    return report


def _run(make_world: MakeWorld, seed: int, without: frozenset[int], trace_lines_max: int) -> Report:
    world = make_world(seed, trace_lines_max)
    faults = [fault for number, fault in enumerate(world.draw_faults()) if number not in without]
    failure = None
    try:
        world.run(faults)
        if not without:
            _check_enough(world)
    except InvariantError as error:
        failure = Failure(check=error.check, message=str(error))
    except AssertionError as error:
        failure = Failure(check="assertion in the core", message=str(error))
    except Exception as error:
        failure = Failure(check="a process raises nothing", message=repr(error))
    return Report(
        seed=seed,
        events=world.kernel.events,
        faults=tuple(world.faults_done if failure is None else faults),
        acknowledged=world.acknowledged,
        virtual_us=world.kernel.now_us,
        failure=failure,
        story=tuple(world.kernel.story()),
    )


def shrink(make_world: MakeWorld, report: Report) -> frozenset[int]:
    """Return the numbers of the faults that a failing seed can do without and still break the same promise."""
    assert report.failure is not None
    count = len(make_world(report.seed, 0).draw_faults())
    without: frozenset[int] = frozenset()
    for number in reversed(range(count)):
        tried = run_seed(make_world, report.seed, without=without | {number})
        if tried.failure is not None and tried.failure.check == report.failure.check:
            without |= {number}
    return without


def run_seeds(make_world: MakeWorld, seeds: Iterable[int], *, jobs: int) -> Iterator[Report]:
    """Run many seeds in `jobs` processes; yield reports as they come."""
    if jobs == 1:
        for seed in seeds:
            yield run_seed(make_world, seed)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        chunks = _in_chunks(seeds)
        for reports in pool.map(_run_chunk, ((make_world, chunk) for chunk in chunks)):
            yield from reports


def _run_chunk(work: tuple[MakeWorld, list[int]]) -> list[Report]:
    make_world, seeds = work
    return [run_seed(make_world, seed) for seed in seeds]


def _in_chunks(seeds: Iterable[int], size: int = 10) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _check_enough(world: World) -> None:
    """A seed in which little happens shows little."""
    happened = (world.kernel.events, len(world.faults_done), world.acknowledged)
    if any(count < least for count, least in zip(happened, (EVENTS_MIN, FAULTS_MIN, ACKNOWLEDGED_MIN), strict=True)):
        raise InvariantError("enough happens", f"(events, faults, acknowledged) are only {happened}")
