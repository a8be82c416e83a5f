"""
Tables with a file lost or torn, or changed by another writer: each failure names the table, the file and the repair,
nothing wrong is written, and the repair makes the table what the log says.
"""

import contextlib
import json
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from log_topic import Schemas, Sent, Topic
from plain_fold import FIELDS, SCHEMA, random_events

from fluvial.config import Settings
from fluvial.delta import row_swap
from fluvial.delta.errors import (
    BrokenLogError,
    DamagedFileError,
    DiskFullError,
    ForeignChangeError,
    LostFileError,
    StorageError,
    TableError,
    UnsupportedTableError,
)
from fluvial.delta.failures import explain_failures
from fluvial.delta.row_swap import checkpoint
from fluvial.delta.stamp import Stamp
from fluvial.orchestration import SparkResource, assets_for
from fluvial.orchestration.run.dry_run import plan_run
from fluvial.spark.session import build_session, register_tables, run_sql
from fluvial.tables import compacted, history, pipeline, state
from fluvial.tables.drive.continuous import Watcher, follow
from fluvial.tables.drive.rebuild import ASIDE, BROKEN, rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.inspect.verify import verify

pytestmark = pytest.mark.spark

FEW = {name: FIELDS[name] for name in ("events", "total", "latest_amount")}


@pipeline(name="kinds", inputs=["history.readings"], version="1")
def kinds(readings: Any) -> Any:
    """Readings by their kind."""
    return readings.groupBy("kind").count()


@dataclass(frozen=True)
class Built:
    """A warehouse with a table of each kind, three commits each, and what is new in their topic since."""

    folder: Path
    topic: Topic
    declarations: Mapping[str, Any]


@pytest.fixture(scope="module")
def built(
    base_settings: Settings,
    bootstrap_servers: str,
    schemas: Schemas,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Built]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    name = f"t_{uuid.uuid4().hex[:12]}"
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(30)
    schemas.register(f"{name}-value", SCHEMA)
    topic = Topic(name=name, bootstrap_servers=bootstrap_servers, schemas=schemas, partitions=1)
    folder = tmp_path_factory.mktemp("broken") / "warehouse"
    own = replace(base_settings, warehouse=str(folder), bootstrap_servers=bootstrap_servers)
    spark = build_session(own, "fluvial tests")
    declared = {
        "history": history(name, name="readings"),
        "compacted": compacted(name, name="readings", key="id"),
        "state": state("readings", topic=name, key="id", fields=FEW),
    }
    for seed in (1, 2, 3):
        topic.send(random_events(seed, 30, partitions=1))
        for each in declared.values():
            materialize(each, own, spark, schemas=schemas)
    materialize(kinds, own, spark, schemas=schemas)
    topic.send(random_events(4, 30, partitions=1))
    yield Built(folder=folder, topic=topic, declarations={**declared, "marts": kinds})
    for future in admin.delete_topics([name]).values():
        future.exception(30)


@dataclass(frozen=True)
class Copy:
    """A copy of that warehouse, which a test may break; its tables are at paths that Delta has never seen."""

    settings: Settings
    spark: Any
    built: Built

    @property
    def schemas(self) -> Schemas:
        return self.built.topic.schemas

    def folder(self, kind: str) -> Path:
        return Path(self.settings.warehouse) / kind / ("kinds" if kind == "marts" else "readings")

    def run(self, kind: str, **more: Any) -> Any:
        return materialize(self.built.declarations[kind], self.settings, self.spark, schemas=self.schemas, **more)

    def rebuild(self, kind: str, **more: Any) -> Any:
        return rebuild(self.built.declarations[kind], self.settings, self.spark, schemas=self.schemas, **more)

    def verify(self, kind: str) -> Any:
        return verify(self.built.declarations[kind], self.settings, self.spark, schemas=self.schemas)

    def log_of(self, kind: str) -> dict[str, bytes]:
        """What its commits say: a run that fails adds none."""
        return {each.name: each.read_bytes() for each in (self.folder(kind) / "_delta_log").glob("*.json")}

    def assert_exact(self, kind: str) -> None:
        """The table is what the log says, all of it."""
        verdict = self.verify(kind)
        assert verdict.is_exact, verdict.differences
        assert verdict.ranges == {0: (0, 120)}

    @property
    def by_table(self) -> Mapping[str, Any]:
        return {each.table: each for each in self.built.declarations.values()}

    def moved(self, *kinds: str, to: Path | None = None) -> "Copy":
        """Some of the tables under another path, of which Delta remembers nothing."""
        folder = to or Path(f"{self.settings.warehouse}-moved-{'-'.join(kinds)}")
        for kind in kinds:
            shutil.copytree(self.folder(kind).parent, folder / kind)
        other = replace(self, settings=replace(self.settings, warehouse=str(folder)))
        register_tables(self.spark, other.settings)
        return other

    def read(self, table: str) -> int:
        """Ask as `fluvial sql` does; the number of rows."""
        with explain_failures("the query"):
            return len(run_sql(self.spark, self.settings, f"select * from {table}").collect())


@pytest.fixture
def copy(built: Built, settings: Settings, spark: Any) -> Copy:
    shutil.copytree(built.folder, settings.warehouse, dirs_exist_ok=True)
    found = Copy(settings=settings, spark=spark, built=built)
    register_tables(spark, settings)
    return found


def commit(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def alive(table: Path) -> list[Path]:
    """The data files that the newest version consists of."""
    found: set[str] = set()
    for version in range(len(list((table / "_delta_log").glob("*.json")))):
        actions = [json.loads(line) for line in commit(table, version).read_text().splitlines()]
        found -= {action["remove"]["path"] for action in actions if "remove" in action}
        found |= {action["add"]["path"] for action in actions if "add" in action}
    return [table / path for path in sorted(found)]


def without_sidecars(table: Path) -> None:
    """Hadoop keeps a checksum beside each local file, and other file systems and a power cut do not."""
    for each in table.rglob(".*.crc"):
        each.unlink()


def lose_data(table: Path) -> Path:
    alive(table)[0].unlink()
    return alive(table)[0]


def tear_data(table: Path) -> Path:
    file = alive(table)[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def empty_data(table: Path) -> Path:
    without_sidecars(table)
    file = alive(table)[0]
    file.write_bytes(b"")
    return file


def lose_vectors(table: Path) -> Path:
    files = sorted(table.glob("*.bin"))
    for each in files:
        each.unlink()
    return table / "deletion_vector_"


def tear_vectors(table: Path) -> Path:
    for each in table.glob("*.bin"):
        each.write_bytes(each.read_bytes()[:10])
    return table / "deletion_vector_"


def tear_newest_commit(table: Path) -> Path:
    file = commit(table, 2)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file


def empty_newest_commit(table: Path) -> Path:
    commit(table, 2).write_bytes(b"")
    return commit(table, 2)


def zero_newest_commit(table: Path) -> Path:
    commit(table, 2).write_bytes(bytes(commit(table, 2).stat().st_size))
    return commit(table, 2)


def cut_newest_commit_between_lines(table: Path) -> Path:
    without_sidecars(table)
    file = commit(table, 2)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    return file


def empty_middle_commit(table: Path) -> Path:
    without_sidecars(table)
    commit(table, 1).write_bytes(b"")
    return commit(table, 1)


def lose_middle_commit(table: Path) -> Path:
    commit(table, 1).unlink()
    return commit(table, 1)


def lose_first_commit(table: Path) -> Path:
    commit(table, 0).unlink()
    return commit(table, 0)


def put_a_file_for_the_log(table: Path) -> Path:
    shutil.rmtree(table / "_delta_log")
    (table / "_delta_log").write_text("")
    return table / "_delta_log"


FILE_DAMAGES: list[tuple[str, Callable[[Path], Path], type[TableError]]] = [
    ("compacted", lose_data, LostFileError),
    ("state", tear_data, DamagedFileError),
    ("compacted", empty_data, DamagedFileError),
    ("compacted", lose_vectors, LostFileError),
    ("compacted", tear_vectors, DamagedFileError),
    ("history", tear_newest_commit, BrokenLogError),
    ("compacted", empty_newest_commit, BrokenLogError),
    ("state", zero_newest_commit, BrokenLogError),
    ("history", cut_newest_commit_between_lines, BrokenLogError),
    ("compacted", cut_newest_commit_between_lines, BrokenLogError),
    ("compacted", empty_middle_commit, BrokenLogError),
    ("history", lose_middle_commit, BrokenLogError),
    ("state", lose_first_commit, BrokenLogError),
    ("state", put_a_file_for_the_log, BrokenLogError),
]


# What is lost and torn of each kind of file and table; the others are told and repaired in the same ways, in the rota.
OFTEN = {
    ("compacted", lose_vectors),
    ("state", tear_data),
    ("history", tear_newest_commit),
    ("state", put_a_file_for_the_log),
}
# What is lost and torn in the middle of a log is told by other lines.
TOLD_OFTEN = OFTEN | {("history", lose_middle_commit), ("compacted", empty_middle_commit)}


def damages(often: Collection[tuple[str, Callable[[Path], Path]]]) -> list[Any]:
    """Each damage as a parameter; those that only the rota has are marked."""
    return [
        pytest.param(
            *damage,
            id=f"{damage[0]}-{damage[1].__name__}",
            marks=() if damage[:2] in often else pytest.mark.rota,
        )
        for damage in FILE_DAMAGES
    ]


@pytest.mark.parametrize(("kind", "damage", "kind_of_error"), damages(TOLD_OFTEN))
def test_a_damaged_file_is_named_and_nothing_is_committed(
    copy: Copy, kind: str, damage: Callable[[Path], Path], kind_of_error: type[TableError]
) -> None:
    file = damage(copy.folder(kind))
    before = {} if damage is put_a_file_for_the_log else copy.log_of(kind)
    if damage is not put_a_file_for_the_log:
        with pytest.raises(kind_of_error, match=rf"--rebuild {kind}\.readings"):
            copy.read(f"{kind}.readings")
    with pytest.raises(kind_of_error) as told:
        copy.run(kind)
    assert str(file) in str(told.value)
    assert f"{kind}.readings" in str(told.value)
    assert f"`fluvial run --rebuild {kind}.readings`" in str(told.value)
    assert "Py4J" not in str(told.value)
    assert "\n" not in str(told.value)
    assert damage is put_a_file_for_the_log or copy.log_of(kind) == before, "nothing was committed"


@pytest.mark.parametrize(("kind", "damage", "kind_of_error"), damages(OFTEN))
def test_a_rebuild_repairs_a_damaged_table(
    copy: Copy, kind: str, damage: Callable[[Path], Path], kind_of_error: type[TableError]
) -> None:
    damage(copy.folder(kind))
    said: list[str] = []
    copy.rebuild(kind, say=said.append)
    assert bool(said) == (kind_of_error is BrokenLogError), said
    copy.assert_exact(kind)
    assert copy.run(kind).skipped
    assert copy.read(f"{kind}.readings") > 0


def test_a_lost_file_of_a_history_is_told_by_all_who_read_it(copy: Copy) -> None:
    file = alive(copy.folder("history"))[0]
    file.unlink()
    for read in (lambda: copy.read("history.readings"), lambda: copy.verify("history")):
        with pytest.raises(LostFileError) as told:
            read()
        assert (told.value.table, told.value.file) == ("history.readings", str(file))
    # What is new is added to the others, and the rows that were lost are still missed.
    assert copy.run("history").rows == 30
    with pytest.raises(LostFileError, match=r"--rebuild history\.readings"):
        copy.run("marts")
    with pytest.raises(LostFileError):
        copy.read("history.readings")
    copy.rebuild("history")
    copy.assert_exact("history")
    assert not copy.run("marts").skipped


def test_a_pipelines_table_is_written_again_from_its_inputs(copy: Copy) -> None:
    before = copy.read("marts.kinds")
    lose_data(copy.folder("marts"))
    with pytest.raises(LostFileError, match=r"--rebuild marts\.kinds` builds the table again from its inputs"):
        copy.read("marts.kinds")
    assert copy.rebuild("marts").rows == before
    assert copy.read("marts.kinds") == before
    commit(copy.folder("marts"), 0).write_bytes(b"{")
    with pytest.raises(BrokenLogError, match=r"--rebuild marts\.kinds"):
        copy.run("marts")
    copy.rebuild("marts")
    assert copy.read("marts.kinds") == before


def test_a_table_that_cannot_be_read_keeps_no_other_from_its_name(copy: Copy) -> None:
    lose_middle_commit(copy.folder("state"))
    # Another session of the same warehouse, as the next command has.
    register_tables(copy.spark, replace(copy.settings, warehouse=f"{copy.settings.warehouse}/other"))
    register_tables(copy.spark, copy.settings)
    assert copy.read("compacted.readings") > 0
    with pytest.raises(
        BrokenLogError, match=r"state/readings/_delta_log.* of state\.readings .*--rebuild state\.readings"
    ):
        copy.read("state.readings")
    planned = {each.table: each for each in plan_run(copy.by_table, copy.settings)}
    assert "00000000000000000001.json in the Delta log of state.readings is missing" in str(
        planned["state.readings"].problem
    )
    assert planned["compacted.readings"].problem is None


def test_a_broken_quarantine_table_is_named_and_begins_again_once_it_is_moved_away(
    spark: Any, settings: Settings, schemas: Schemas, make_topic: Any
) -> None:
    topic = make_topic(SCHEMA)
    topic.send([*random_events(1, 5, partitions=1), Sent(key="k", raw=b"no value")])
    aside = Path(settings.warehouse) / "quarantine" / topic.name
    tables = compacted(topic.name, name="others", key="id"), history(topic.name, name="others")
    assert materialize(tables[0], settings, spark, schemas=schemas).quarantined == 1
    commit(aside, 0).write_bytes(b"{")
    with pytest.raises(BrokenLogError, match=rf"of quarantine\.{topic.name} is torn.* move {aside} away"):
        materialize(tables[1], settings, spark, schemas=schemas)
    aside.rename(aside.with_name("away"))
    assert materialize(tables[1], settings, spark, schemas=schemas).quarantined == 1


def test_a_torn_checkpoint_is_named_and_what_only_saves_time_is_not_missed(copy: Copy) -> None:
    assert checkpoint(copy.spark, str(copy.folder("compacted")), commits_min=1)
    log = copy.folder("compacted") / "_delta_log"
    whole = {name: (log / name).read_bytes() for name in ("_last_checkpoint", f"{2:020d}.crc")}
    for name, content in whole.items():
        (log / name).write_bytes(content[:20])
    torn = copy.moved("compacted")
    torn.run("compacted")
    torn.assert_exact("compacted")

    # Without these, Delta would find out at once, and read all commits instead for as long as they are there.
    for name, content in whole.items():
        (log / name).write_bytes(content)
    checkpoint_file = log / f"{2:020d}.checkpoint.parquet"
    checkpoint_file.write_bytes(checkpoint_file.read_bytes()[:100])
    torn = copy.moved("compacted", to=Path(f"{copy.settings.warehouse}-torn"))
    with pytest.raises(
        BrokenLogError, match=rf"{checkpoint_file.name} in the Delta log of compacted\.readings cannot be"
    ):
        torn.run("compacted")
    torn.rebuild("compacted")
    torn.assert_exact("compacted")


@pytest.mark.rota
def test_a_checkpoint_without_its_commits_is_no_new_table(copy: Copy) -> None:
    assert checkpoint(copy.spark, str(copy.folder("compacted")), commits_min=1)
    for each in copy.log_of("compacted"):
        (copy.folder("compacted") / "_delta_log" / each).unlink()
    with pytest.raises(BrokenLogError, match=rf"{2:020d}.json in the Delta log of compacted\.readings is missing"):
        copy.run("compacted")


def test_a_checksum_of_a_commit_that_is_gone_is_not_believed(copy: Copy) -> None:
    """As after a power cut that took the newest commit and left what was written beside it."""
    table = copy.folder("compacted")
    without_sidecars(table)
    kept = (table / "_delta_log" / f"{2:020d}.crc").read_bytes()
    commit(table, 2).unlink()
    copy.run("compacted")
    (table / "_delta_log" / f"{2:020d}.crc").write_bytes(kept)
    without_sidecars(table)
    moved = copy.moved("compacted")
    assert moved.run("compacted").skipped
    names = {each.name for each in row_swap.data_files(moved.spark, str(moved.folder("compacted")), 2) or ()}
    assert names == {each.name for each in alive(moved.folder("compacted"))}
    moved.assert_exact("compacted")


PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "reader feature": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors", "zorp"],
        "writerFeatures": ["deletionVectors", "zorp"],
    },
    "writer feature": {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "zorp"],
    },
    "version": {"minReaderVersion": 99, "minWriterVersion": 99},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_feature_that_delta_does_not_have_is_named(copy: Copy, protocol: str) -> None:
    table = copy.folder("compacted")
    actions = [{"commitInfo": {"timestamp": 1, "operation": "UPGRADE"}}, {"protocol": PROTOCOLS[protocol]}]
    commit(table, 3).write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    before = copy.log_of("compacted")
    for attempt in (copy.run, copy.rebuild):
        with pytest.raises(UnsupportedTableError, match="upgrade delta-spark") as told:
            attempt("compacted")
        assert "compacted.readings" in str(told.value)
        assert "\n" not in str(told.value)
        assert protocol == "version" or "zorp" in str(told.value)
    assert copy.log_of("compacted") == before


@pytest.mark.rota
def test_what_another_writer_did_to_a_table_is_told(copy: Copy) -> None:
    table = str(copy.folder("history"))
    rows = (
        copy.spark.read.format("delta").load(table).selectExpr("CAST(kind AS BINARY) AS kind", "_offset", "_partition")
    )
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
    before = copy.log_of("history")
    with pytest.raises(ForeignChangeError, match=r"history\.readings was changed by another writer .*--rebuild"):
        copy.run("history")
    assert copy.log_of("history") == before
    copy.rebuild("history")
    copy.assert_exact("history")

    shutil.rmtree(copy.folder("state"))
    copy.spark.range(5).write.format("delta").save(str(copy.folder("state")))
    with pytest.raises(TableError, match=r"no run of fluvial wrote.*fluvial table adopt state\.readings"):
        copy.run("state")

    copy.spark.sql(
        f"ALTER TABLE delta.`{copy.folder('compacted')}` SET TBLPROPERTIES (delta.enableDeletionVectors=false)"
    )
    copy.spark.sql(f"REORG TABLE delta.`{copy.folder('compacted')}` APPLY (PURGE)")
    copy.run("compacted")
    copy.assert_exact("compacted")


def test_a_commit_that_came_in_between_is_told_where_it_is_not_tried_again(copy: Copy) -> None:
    table = str(copy.folder("state"))
    transaction = row_swap._Transaction.begin(copy.spark, table)
    copy.spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('who' = 'another')")
    stamp = Stamp(topic="t", topic_id=None, batch=9, offsets={0: (0, 1)})
    with (
        pytest.raises(ForeignChangeError, match=r"state\.readings was changed by another writer \(MetadataChanged"),
        explain_failures("state.readings", table),
    ):
        transaction.commit([], stamp)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 3 MiB at a folder."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_told_and_waited_for(copy: Copy, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        full = copy.moved("compacted", to=tmp_path / "disk" / "warehouse")
        filler = tmp_path / "disk" / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        before = full.log_of("compacted")
        with pytest.raises(DiskFullError, match=r"compacted\.readings .*no space left on device: nothing of the batch"):
            full.run("compacted")
        assert full.log_of("compacted") == before
        assert full.read("compacted.readings") > 0

        stop, waited, done = threading.Event(), [], []

        def wait(reason: str) -> None:
            waited.append(reason)
            if len(waited) == 2:
                filler.unlink()

        def finish(result: Any) -> None:
            done.append(result)
            stop.set()

        watcher = Watcher(batch=finish, waiting=wait, stopped=lambda *_: stop.set())
        errors = follow(
            [copy.built.declarations["compacted"]],
            full.settings,
            copy.spark,
            stop,
            schemas=copy.schemas,
            watcher=watcher,
        )
        assert not errors
        assert all("no space left on device" in each for each in waited)
        assert len(waited) >= 2
        full.assert_exact("compacted")


def test_a_folder_that_may_not_be_written_is_named(copy: Copy) -> None:
    folder = copy.folder("compacted")
    # Root, as whom tests may run, passes by modes, and not by this.
    if subprocess.run(["chattr", "+i", folder, folder / "_delta_log"], capture_output=True, check=False).returncode:
        pytest.skip("a folder cannot be made immutable here")
    try:
        with pytest.raises(StorageError, match="Operation not permitted: nothing of the batch was committed") as told:
            copy.run("compacted")
    finally:
        subprocess.run(["chattr", "-i", folder, folder / "_delta_log"], check=True)
    assert str(folder) in str(told.value)
    assert not told.value.retriable
    copy.run("compacted")
    copy.assert_exact("compacted")


def test_a_driver_that_goes_on_gives_up_the_damaged_table_alone(copy: Copy) -> None:
    """The driver knows where rows lie, and reads them without Spark."""
    chosen = [copy.built.declarations[kind] for kind in ("compacted", "state")]
    lost, torn = alive(copy.folder("compacted"))[0], alive(copy.folder("state"))[0]
    lost.unlink()
    torn.write_bytes(torn.read_bytes()[:-100])
    told: dict[str, Any] = {}
    watcher = Watcher(stopped=lambda table, error: told.update({table: error}))
    ended = follow(chosen, copy.settings, copy.spark, threading.Event(), schemas=copy.schemas, watcher=watcher)
    assert ended == told
    assert (type(told["compacted.readings"]), type(told["state.readings"])) == (LostFileError, DamagedFileError)
    assert (told["compacted.readings"].file, told["state.readings"].file) == (str(lost), str(torn))


def test_what_a_rebuild_has_left_damaged_is_built_from_the_beginning(copy: Copy) -> None:
    aside = Path(copy.settings.warehouse) / ASIDE / "compacted.readings" / "compacted" / "readings"

    class Killed(BaseException):
        """Stands for SIGKILL."""

    def killed(_batch: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        copy.rebuild("compacted", progress=killed)
    lose_data(aside)
    copy.rebuild("compacted")
    copy.assert_exact("compacted")
    assert not (Path(copy.settings.warehouse) / BROKEN).exists(), "the live table was whole"


@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_step_of_dagster_says_it_and_the_others_go_on(copy: Copy) -> None:
    lose_data(copy.folder("compacted"))

    def run(declaration: Any, settings: Settings, spark: Any, /, **more: Any) -> Any:
        return materialize(declaration, settings, spark, schemas=copy.schemas, **more)

    found = dg.materialize(
        [each for each in assets_for(copy.by_table, run=run) if isinstance(each, dg.AssetsDefinition)],
        resources={"spark": SparkResource.of(copy.settings)},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )
    assert not found.success
    [failed] = [event for event in found.all_events if event.is_step_failure]
    said = failed.step_failure_data.user_failure_data
    assert said is not None
    assert "compacted__readings" in str(failed.step_key)
    assert "is missing: restore it, or `fluvial run --rebuild compacted.readings`" in str(said.description)
    assert len(found.get_asset_materialization_events()) == 3
