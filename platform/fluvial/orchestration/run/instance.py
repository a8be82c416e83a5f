"""
The Dagster home of a project: its configuration, its runs, and what a killed process left behind.

Every run that `materialize_all` makes holds a lock file. The kernel drops the lock when the process ends, however it
ends, so a run that still counts as in progress while its lock is free has died, and a reused process id fools nobody.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from dagster import DagsterInstance, DagsterRun

RUN_TAG = "fluvial/run"
"""
Marks the runs that hold a lock from their beginning to their end. Others hold one as soon as they have their resources;
those are watched by Dagster's own code server, and by the lock alone once that is gone too.
"""

CONFIGURATION = """\
# Written once by fluvial; edit it freely.
telemetry:
  enabled: false
# No dialog that asks for an e-mail address.
nux:
  enabled: false
concurrency:
  runs:
    # Each run has a Spark driver of its own: more than two at once is more than a laptop holds.
    max_concurrent_runs: 2
  pools:
    # Each table has a pool of its own: a second run of it waits for the first. Two at once would do no harm, and one of
    # them nothing.
    granularity: run
    default_limit: 1
freshness:
  enabled: true
"""

_WHY_CHARS_MAX = 200

_LOG_NOTHING = {
    "module": "dagster._core.storage.noop_compute_log_manager",
    "class": "NoOpComputeLogManager",
    "config": {},
}


class HomeError(FluvialError):
    """The Dagster home of a data directory cannot be opened."""

    def __init__(self, home: Path, error: Exception) -> None:
        why = " ".join(str(error).split()).partition("[SQL")[0].strip() or type(error).__name__
        super().__init__(
            f"{home} cannot be opened ({why[:_WHY_CHARS_MAX]}): repair its dagster.yaml, or move the folder away: it "
            "holds what the page shows of runs, and no table"
        )
        self.home = home


def home_of(data_dir: Path) -> Path:
    """Return the Dagster home of a data directory, made and configured if it is not there."""
    home = data_dir.absolute() / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    configuration = home / "dagster.yaml"
    if not configuration.exists():
        scratch = home / f".dagster.yaml.{os.getpid()}"
        scratch.write_text(CONFIGURATION)
        scratch.replace(configuration)
    return home


@contextmanager
def open_instance(home: Path) -> Iterator["DagsterInstance"]:
    """
    Open the instance that the web page reads, for runs in this process.

    The capture of stdout and stderr is left out: it redirects the whole process's file descriptors while a step runs,
    and this process may be drawing its progress there. Raises HomeError for a home that is damaged.
    """
    from dagster import DagsterInstance
    from dagster._core.instance import InstanceRef

    try:
        with _opening(home):
            ref = InstanceRef.from_dir(str(home), overrides={"compute_logs": _LOG_NOTHING})
            opened = DagsterInstance.from_ref(ref)
            # The parts whose tables are made on first use.
            opened.schedule_storage, opened.event_log_storage, opened.run_storage  # noqa: B018
    except Exception as error:  # of YAML, of its checks, of the database: there is no common class
        raise HomeError(home, error) from error
    with opened as instance:
        yield instance


@contextmanager
def _opening(home: Path) -> Iterator[None]:
    """One process at a time: Dagster makes its tables without a lock, and of two that make them one is refused."""
    with (home / ".opening").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def run_lock(home: Path, run_id: str) -> Iterator[None]:
    """Hold the lock that says the run is alive."""
    path = _lock_path(home, run_id)
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def shared_run_lock(home: Path, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, unless another part of the run holds it already."""
    path = _lock_path(home, run_id)
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield
            return
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def close_dead_runs(instance: "DagsterInstance", home: Path) -> list[str]:
    """Mark as failed the runs whose process is gone, so that none seems to run for ever; return their ids."""
    from dagster import RunsFilter
    from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

    open_runs = instance.get_runs(RunsFilter(statuses=NOT_FINISHED_STATUSES, tags={RUN_TAG: "cli"}))
    dead = [run for run in open_runs if not _alive(home, run)]
    for run in dead:
        instance.report_run_failed(run, "The process of this run died; its uncommitted work is discarded.")
        _lock_path(home, run.run_id).unlink(missing_ok=True)
    return [run.run_id for run in dead]


def is_dead(home: Path, run_id: str) -> bool:
    """Tell whether a run once held its lock and the process that did is gone; False for one that never held it."""
    try:
        with _lock_path(home, run_id).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True


def _alive(home: Path, run: "DagsterRun") -> bool:
    try:
        with _lock_path(home, run.run_id).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock_path(home: Path, run_id: str) -> Path:
    return home / "alive" / f"{run_id}.lock"
