"""
One key erased everywhere: from the log, from the tables of its topic, from what is made of these, and from old files.

The order is what keeps it erased. First the log, as far as the broker forgets keys; then the list of erasures, from
which on no run brings the records back; then the tables of the topic, the rows that checks have put aside, and what
stands behind the tables, by the roads of every day; then the files that only mark their rows as gone; and, where it is
asked for, the old versions' files and log. Each step looks for itself whether it has been done, so that an erasure that
was killed is gone on with by asking for it again.
"""

import base64
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluvial.delta import saved_keys
from fluvial.delta.commit import ATTEMPTS_MAX, append, commit_once, is_lost_race
from fluvial.delta.erasures import Erasure, add_erasure, read_erasures
from fluvial.delta.errors import OvertakenError, plain_path
from fluvial.delta.failures import explain_failures
from fluvial.delta.log import TableLog
from fluvial.delta.mart_stamp import newest_made
from fluvial.delta.purge import ORPHAN_HOURS, Vacuumed, vacuum, write_without_marked
from fluvial.delta.stamp import new_run_id, read_position
from fluvial.spark.avro import SchemaSource
from fluvial.spark.connect import session_of_its_own
from fluvial.spark.warehouse import SERVED, Warehouse
from fluvial.tables.declare.declarations import Declaration, Pipeline, Publication
from fluvial.tables.drive.erase_table import erase_pending
from fluvial.tables.drive.rebuild import ASIDE, BROKEN, rebuild
from fluvial.tables.drive.runner import materialize
from fluvial.tables.erasure.key_in_log import append_tombstones, shown_time
from fluvial.tables.erasure.survey import Survey, TopicTable, survey
from fluvial.tables.refresh.late_table import has_watermarks, late_table_of
from fluvial.tables.refresh.pipeline_inputs import wanted_stamp
from fluvial.tables.refresh.stream_run import CHECKPOINTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.config import Settings

_RETENTION = "delta.deletedFileRetentionDuration"
_RETENTION_DEFAULT = "interval 7 days"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """
    What an erasure has taken out of one table, or would: `rows` is None for a table that follows its inputs.
    """

    table: str
    rows: int | None
    version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """
    Where the key can still be read, and until when, in words.
    """

    where: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """
    What was erased, or would be; `tombstones` are offsets by partition, `number` that of the list of erasures.
    """

    topic: str
    records: int
    tombstones: Mapping[int, int]
    number: int | None
    gone: tuple[Gone, ...]
    remains: tuple[Remains, ...]


def erase(
    topic: str,
    key: bytes,
    declared: Mapping[str, Declaration],
    settings: "Settings",
    spark: "SparkSession",
    *,
    schemas: SchemaSource,
    with_vacuum: bool = False,
    dry_run: bool = False,
    say: Say = lambda _line: None,
) -> ErasureReport:
    """
    Erase the records of a topic with this key, and what tables hold of them; `say` hears of each step as it begins.

    With `dry_run` nothing is changed. With `with_vacuum` old versions lose their files too. Raises
    :class:`~fluvial.tables.erasure.survey.EraseError` before anything is changed, and whatever
    :func:`~fluvial.tables.drive.runner.materialize` raises of a table behind; asked for again, it goes on.
    """
    found = survey(topic, key, declared, settings, spark, schemas=schemas, say=say)
    work = _Erasing(key=key, found=found, settings=settings, spark=spark, schemas=schemas, say=say)
    if dry_run:
        return work.report({}, found.goes_on, list(work.would_go()), None)
    tombstones, entry = work.have_it_listed()
    gone = [*work.from_tables(), *work.from_kept_rows(), *work.from_what_follows()]
    work.write_files_again()
    vacuumed = work.remove_old() if with_vacuum else {}
    return work.report(tombstones, entry, gone, vacuumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Erasing:
    key: bytes
    found: Survey
    settings: "Settings"
    spark: "SparkSession"
    schemas: SchemaSource
    say: Say

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse.at(self.settings.warehouse)

    def would_go(self) -> Iterator[Gone]:
        for table in self.found.tables:
            yield Gone(table=table.name, rows=table.rows, version=table.position.version)
        for name in self.found.failed:
            yield Gone(table=name, rows=self._kept_rows(name), version=self._version(name))
        for each in self.found.behind:
            yield Gone(table=each.table, rows=None, version=self._version(each.table))

    def have_it_listed(self) -> tuple[Mapping[int, int], Erasure]:
        """Have the broker forget the key where it does so, and every run that is to come."""
        found = self.found
        if found.goes_on is not None:
            self.say(f"{found.topic}: going on with erasure {found.goes_on.number}")
            return {}, found.goes_on
        tombstones: Mapping[int, int] = {}
        before = dict(found.bounds.ends)
        ended: list[int] = []
        if found.keeping.compacted:
            alive = sorted(number for number, last in found.in_log.last.items() if not last.is_tombstone)
            if alive:
                self.say(f"{found.topic}: appending a tombstone to partition {', '.join(map(str, alive))}")
                tombstones = append_tombstones(self.settings.cluster, found.topic, self.key, alive)
            # What comes behind the tombstone is of a key that begins anew.
            before |= {number: last.offset + 1 for number, last in found.in_log.last.items()}
            before |= {number: offset + 1 for number, offset in tombstones.items()}
            ended = sorted(found.in_log.last)
        self.say(f"{found.topic}: listing the key as erased")
        entry = add_erasure(
            self.spark,
            self.warehouse.root,
            topic=found.topic,
            topic_id=found.bounds.topic_id,
            digest=found.digest,
            before=before,
            ended=ended,
        )
        return tombstones, entry

    def from_tables(self) -> Iterator[Gone]:
        """Take the rows out of the tables of the topic."""
        for table in self.found.tables:
            self.say(f"{table.name}: taking out {table.rows:,} rows")
            with explain_failures(table.name, self.warehouse.path(table.name)):
                version = self._erase(table)
            yield Gone(table=table.name, rows=table.rows, version=version)

    def _erase(self, table: TopicTable) -> int | None:
        log = TableLog(self.spark, self.warehouse.path(table.name))
        bounds = self.found.bounds
        for _ in range(ATTEMPTS_MAX):
            position = read_position(log, table.name)
            erasures = read_erasures(self.spark, self.warehouse.root, bounds.topic, bounds.topic_id)
            done = erase_pending(
                self.spark,
                log,
                position,
                erasures,
                root=self.warehouse.root,
                key=table.key,
                is_state=table.name.startswith("state."),
            )
            if done is None:
                return position.version
        raise OvertakenError(table.name, ATTEMPTS_MAX, doing="erase")

    def from_kept_rows(self) -> Iterator[Gone]:
        """Take out what checks have put aside of the key: whole rows or values, as JSON."""
        for name in self.found.failed:
            rows = self._kept_rows(name)
            if rows:
                self.say(f"{name}: taking out {rows:,} rows")
                self._delete_kept(name)
            yield Gone(table=name, rows=rows, version=self._version(name))

    def _kept_condition(self) -> str:
        """The SQL condition for a row `t` that mentions the key, given its forms in JSON, `s.forms` and `s.coded`."""
        inside = " OR ".join(f"exists(s.forms, form -> instr(coalesce(t.`{name}`, ''), form) > 0)"
                             for name in ("_values", "_row"))  # fmt: skip
        return f"({inside} OR get_json_object(t._row, '$._key') = s.coded)"

    def _key_forms(self) -> tuple[list[str], str]:
        text = self.key.decode(errors="replace")
        forms = sorted({json.dumps(text), json.dumps(text, ensure_ascii=False)})
        return forms, base64.b64encode(self.key).decode()

    def _kept_rows(self, name: str) -> int:
        from pyspark.sql.functions import expr

        table = self.spark.read.format("delta").load(self.warehouse.path(name)).alias("t")
        forms = self.spark.createDataFrame([self._key_forms()], "forms ARRAY<STRING>, coded STRING").alias("s")
        rows: int = table.join(forms, expr(self._kept_condition()), "left_semi").count()
        return rows

    def _delete_kept(self, name: str) -> None:
        source = f"_erased_{uuid.uuid4().hex}"
        with session_of_its_own(self.spark) as session:
            session.createDataFrame([self._key_forms()], "forms ARRAY<STRING>, coded STRING").createOrReplaceTempView(
                source
            )
            for _ in range(ATTEMPTS_MAX):
                try:
                    session.sql(
                        f"MERGE INTO delta.`{self.warehouse.path(name)}` AS t USING {source} AS s "
                        f"ON {self._kept_condition()} WHEN MATCHED THEN DELETE"
                    ).collect()
                except Exception as error:
                    if not is_lost_race(error):
                        raise
                    continue
                return
        raise OvertakenError(name, ATTEMPTS_MAX, doing="erase")

    def from_what_follows(self) -> Iterator[Gone]:
        """Bring pipelines and publications up to date, inputs first, as any run does."""
        for each in self.found.behind:
            self.say(f"{each.table}: bringing it up to date")
            result = self._follow(each)
            yield Gone(table=each.table, rows=None, version=result)

    def _follow(self, declaration: Pipeline | Publication) -> int | None:
        if isinstance(declaration, Pipeline) and declaration.output_mode is not None:
            made = newest_made(TableLog(self.spark, self.warehouse.path(declaration.table)))
            if made is not None and not made.stamp.is_of(wanted_stamp(declaration, self.warehouse, self.spark)):
                # What a streaming query has taken in it does not take back, and it may remember it.
                return rebuild(declaration, self.settings, self.spark, schemas=self.schemas).version_after
        return materialize(declaration, self.settings, self.spark, schemas=self.schemas).version_after

    @property
    def _with_files(self) -> list[str]:
        """All tables that hold or held the key, inputs first."""
        names = [table.name for table in self.found.tables]
        marts = self.found.marts
        late = (late_table_of(each) for each in marts if has_watermarks(each))
        has_late = [name for name in late if self._version(name) is not None]
        return [*names, *self.found.failed, *(each.table for each in marts), *has_late]

    def write_files_again(self) -> None:
        """Rows that deletion vectors mark leave their files too."""
        for name in self._with_files:
            with session_of_its_own(self.spark) as session, explain_failures(name, self.warehouse.path(name)):
                self.say(f"{name}: writing files without the rows that are marked as gone")
                write_without_marked(session, self.warehouse.path(name))
            self._forget_copies(name)

    def _forget_copies(self, name: str) -> None:
        """Remove what is kept beside the files that a table had: its saved index, the copies of `fluvial serve`."""
        if self.warehouse.local is not None:
            saved_keys.remove(plain_path(self.warehouse.path(name)))
            shutil.rmtree(self.warehouse.local / SERVED / name, ignore_errors=True)

    def remove_old(self) -> dict[str, Vacuumed]:
        """Remove what only old versions have; the newest commit of each table says first where it stands."""
        for table in self.found.tables:
            self._seal(table.name)
        for each in self.found.behind:
            # Their stamps name versions of their inputs, which must be among those that stay.
            materialize(each, self.settings, self.spark, schemas=self.schemas)
        done = {}
        for name in self._with_files:
            self.say(f"{name}: removing the files of old versions")
            with session_of_its_own(self.spark) as session, explain_failures(name, self.warehouse.path(name)):
                # What came behind the table's files were written again may have marked rows of the key once more.
                write_without_marked(session, self.warehouse.path(name))
                done[name] = vacuum(session, self.warehouse.path(name))
            self._forget_copies(name)
        self._forget_checkpoints()
        return done

    def _forget_checkpoints(self) -> None:
        """Remove what streaming queries remembered before they were made again."""
        for each in self.found.marts:
            made = newest_made(TableLog(self.spark, self.warehouse.path(each.table)))
            if each.output_mode is not None and made is not None and self.warehouse.local is not None:
                for folder in (self.warehouse.local / CHECKPOINTS / each.table).glob("*"):
                    if folder.name != made.stamp.checkpoint:
                        shutil.rmtree(folder, ignore_errors=True)

    def _seal(self, name: str) -> None:
        """Say where a table stands in a commit that adds no row, so that none before it is needed."""
        path = self.warehouse.path(name)
        log = TableLog(self.spark, path)
        for _ in range(ATTEMPTS_MAX):
            position = read_position(log, name)
            assert position.stamp is not None, "a table of a topic has a stamp"
            if newest_is_seal(log):
                return
            stamp = replace(
                position.stamp,
                batch=position.stamp.batch + 1,
                offsets={partition: (end, end) for partition, end in position.ends.items()},
                removed=0,
                rewritten={},
                run=new_run_id(),
            )
            nothing = self.spark.createDataFrame([], self.spark.read.format("delta").load(path).schema)
            write = lambda: append(nothing, path, stamp)  # noqa: B023, E731
            if commit_once(log, stamp, above=position.version, write=write) is not None:
                return
        raise OvertakenError(name, ATTEMPTS_MAX, doing="erase")

    def report(
        self,
        tombstones: Mapping[int, int],
        entry: Erasure | None,
        gone: list[Gone],
        vacuumed: Mapping[str, Vacuumed] | None,
    ) -> ErasureReport:
        """What was done; `vacuumed` is None where nothing was."""
        return ErasureReport(
            topic=self.found.topic,
            records=self.found.in_log.records,
            tombstones=tombstones,
            number=None if entry is None else entry.number,
            gone=tuple(gone),
            remains=(
                *self._in_the_log(),
                *(() if vacuumed is None else self._in_tables(vacuumed)),
                *self._elsewhere(),
            ),
        )

    def _in_the_log(self) -> Iterator[Remains]:
        found, keeping = self.found, self.found.keeping
        if not found.in_log.records:
            return
        where = f"topic {found.topic} ({found.in_log.records:,} records)"
        if keeping.compacted:
            yield Remains(where=where, until="compaction has removed what stands before the tombstone, and then it too")
        elif keeping.retention_ms is None:
            yield Remains(
                where=where,
                until="somebody deletes them: the topic is not compacted and its retention.ms is -1 (`fluvial topic "
                f"delete-records {found.topic}:PARTITION --before OFFSET`)",
            )
        else:
            assert found.in_log.newest_ms is not None, "there are records"
            until = shown_time(found.in_log.newest_ms + keeping.retention_ms)
            yield Remains(where=where, until=f"retention removes them, from {until} on: the topic is not compacted")

    def _in_tables(self, vacuumed: Mapping[str, Vacuumed]) -> Iterator[Remains]:
        for name in self._with_files:
            if name not in vacuumed:
                until = f"--vacuum, or a VACUUM once they are older than {self._retention(name)}"
                yield Remains(where=f"{name}: versions before {self._version(name)}", until=until)
                continue
            left = vacuumed[name]
            if not left.files:
                until = f"--vacuum once more, in {ORPHAN_HOURS} h: its log does not tell of all old files"
                yield Remains(where=f"{name}: files of old versions", until=until)
            if left.orphans:
                until = f"--vacuum once more, in {ORPHAN_HOURS} h: they may be of a run that is under way"
                yield Remains(where=f"{name}: {left.orphans} files that no commit names", until=until)
            if not left.log:
                until = "Delta clears its log (delta.logRetentionDuration): it cannot be cleared from here"
                yield Remains(where=f"{name}: bounds of columns in old commits", until=until)

    def _elsewhere(self) -> Iterator[Remains]:
        for name in self.found.undeclared:
            yield Remains(
                where=name, until="it is removed: the project no longer declares it, and nothing refreshes it"
            )
        for each in self.found.behind:
            if isinstance(each, Publication):
                yield Remains(
                    where=f"topic {each.topic}, published from {each.source}, and tables made from it",
                    until=f"the keys that its rows had are erased too: `fluvial table erase {each.topic} KEY`",
                )
        local = self.warehouse.local
        if local is None:
            return
        for folder in sorted((local / BROKEN).glob("*")):
            if folder.name.rpartition("-")[0] in self._with_files:
                yield Remains(where=str(folder), until="it is removed: what was left of a broken table")
        for folder in sorted((local / ASIDE).glob("*")):
            if folder.name in self._with_files:
                yield Remains(where=str(folder), until="it is removed, or the rebuild that made it is run to its end")

    def _retention(self, name: str) -> str:
        rows = self.spark.sql(f"SHOW TBLPROPERTIES delta.`{self.warehouse.path(name)}`").collect()
        properties: dict[str, str] = {row["key"]: row["value"] for row in rows}
        return properties.get(_RETENTION, _RETENTION_DEFAULT).removeprefix("interval ")

    def _version(self, name: str) -> int | None:
        return TableLog(self.spark, self.warehouse.path(name)).newest_version()


def newest_is_seal(log: TableLog) -> bool:
    """
    Whether the newest commit is stamped and changed nothing, so that there is nothing before it which is needed.
    """
    commit = next(log.newest_first(), None)
    if commit is None or not isinstance((commit.user_metadata or {}).get("fluvial"), dict):
        return False
    return not log.data_changes(commit.version)
