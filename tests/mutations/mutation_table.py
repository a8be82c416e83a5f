"""What `rules_mutations` breaks: in which file which text, by what it is replaced, and which tests must fail for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One rule and how it is broken; `old` stands once in `file`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _of(file: str, tests: Sequence[str], *table: tuple[str, str, str]) -> Iterator[Mutation]:
    """Mutations of one file that the same tests notice: name, old and new."""
    for name, old, new in table:
        yield Mutation(name=name, file=file, old=old, new=new, tests=tuple(tests))


def _swap(test: str, *table: tuple[str, str, str]) -> Iterator[Mutation]:
    """Mutations of swaps: each test takes a Spark of its own, so one is named."""
    return _of("platform/fluvial/delta/row_swap.py", [f"tests/spark/test_spark_row_swap.py::{test}"], *table)


MODEL = "platform/fluvial/registry/model"
UNIT = "tests/unit/fluvial/registry"
API = f"{UNIT}/test_registry_api.py"
RULES = f"{UNIT}/test_registry_rules.py"
STATE = f"{UNIT}/test_registry_state.py"
OWNERSHIP = f"{UNIT}/test_registry_ownership.py"
DELTA = "platform/fluvial/delta"
UNIT_DELTA = "tests/unit/fluvial/delta"
BROKER = "log_broker"
UNIT_BROKER = "tests/unit/log_broker"

REGISTRY = (
    *_of(
        f"{MODEL}/compatibility.py",
        [API],
        (
            "BACKWARD_TRANSITIVE looks at the last version only",
            'if not level.endswith("_TRANSITIVE"):',
            'if level == "BACKWARD_TRANSITIVE" or not level.endswith("_TRANSITIVE"):',
        ),
        (
            "FORWARD_TRANSITIVE looks at the last version only",
            'if not level.endswith("_TRANSITIVE"):',
            'if level == "FORWARD_TRANSITIVE" or not level.endswith("_TRANSITIVE"):',
        ),
        (
            "FULL_TRANSITIVE looks at the last version only",
            'if not level.endswith("_TRANSITIVE"):',
            'if level == "FULL_TRANSITIVE" or not level.endswith("_TRANSITIVE"):',
        ),
        ("BACKWARD looks at every version", 'if not level.endswith("_TRANSITIVE"):', "if False:"),
        ("FORWARD asks for what BACKWARD asks", 'if direction in {"FORWARD", "FULL"}:', "if False:"),
        ("FULL is BACKWARD", 'if direction in {"FORWARD", "FULL"}:', 'if direction == "FORWARD":'),
        ("FULL is FORWARD", 'if direction in {"BACKWARD", "FULL"}:', 'if direction == "BACKWARD":'),
    ),
    *_of(
        f"{MODEL}/compatibility.py",
        [RULES],
        ("another kind of schema may follow", "if new.kind.name != old.kind.name:", "if False:"),
    ),
    *_of(
        f"{MODEL}/registering.py",
        [RULES],
        (
            "a soft-deleted version holds the next one back",
            "incompatibilities(state, library, subject, body, live)",
            "incompatibilities(state, library, subject, body, every)",
        ),
        ("what is imported has to be compatible", "if not importing and (messages", "if (messages"),
        (
            "versions of other groups are compared with",
            "earlier = [each for each in earlier if _group_value(each.body, group) == wanted]",
            "pass",
        ),
        ("an import overwrites an id", "if taken is not None and taken != body:", "if False:"),
        (
            "an import may give the id of another schema of the subject",
            "if known is not None and wanted_id in {None, known.id}:",
            "if known is not None:",
        ),
        ("an id is brought outside of IMPORT", 'if draft.id is not None and mode != "IMPORT":', "if False:"),
        ("IMPORT takes schemas without an id", 'if draft.id is None and mode != "READWRITE":', "if False:"),
        ("READONLY takes schemas", "    _check_mode(subject, draft, mode)\n    importing", "    importing"),
        (
            "a version is left out",
            "if version != next_version and not importing:",
            "if False:",
        ),
        (
            "a version that is referred to gives way",
            "and not state.referrers(each.subject, each.version, deleted=True)",
            "and True",
        ),
        (
            "a soft-deleted version stays beside the new one",
            "if each.deleted\n        and each.id",
            "if False\n        and each.id",
        ),
        (
            "the same schema has another id in each subject",
            "found = state.id_of(body, context)\n    if found is not None:",
            "found = state.id_of(body, context)\n    if False:",
        ),
        ("a version number is given again", "every[-1].version + 1 if every", "live[-1].version + 1 if live"),
    ),
    *_of(
        f"{MODEL}/decide.py",
        [RULES],
        (
            "what is soft-deleted is soft-deleted again",
            "if found.deleted and not command.permanent:",
            "if False:",
        ),
        (
            "a live version is hard-deleted",
            "if not found.deleted:\n        raise errors.version_not_soft_deleted",
            "if False:\n        raise errors.version_not_soft_deleted",
        ),
        (
            "a live subject is hard-deleted",
            "if command.permanent and not each.deleted:",
            "if False:",
        ),
        (
            "a version that is referred to is deleted",
            "if state.referrers(subject, found.version, deleted=command.permanent):",
            "if False:",
        ),
        (
            "a soft-deleted referrer does not hold a hard deletion back",
            "if state.referrers(subject, found.version, deleted=command.permanent):",
            "if state.referrers(subject, found.version):",
        ),
        ("a subject that is referred to is deleted", "if any(other != subject for other in others):", "if False:"),
        (
            "a subject that refers to itself cannot be deleted",
            "if any(other != subject for other in others):",
            "if any(others):",
        ),
        (
            "an id is given again after its version is gone",
            "    records: list[Record] = [\n        state.highest_ids(),\n        SchemaGone(subject=subject",
            "    records: list[Record] = [\n        SchemaGone(subject=subject",
        ),
        (
            "an id is given again after its subject is gone",
            "        records = [state.highest_ids()]\n        # Last first",
            "        records = []\n        # Last first",
        ),
        (
            "settings outlive the last version",
            "    if len(state.versions(subject, deleted=True)) == 1:",
            "    if False:",
        ),
        (
            "settings outlive their subject",
            "for number in reversed(numbers)]\n        records += _without_settings(state, subject)",
            "for number in reversed(numbers)]",
        ),
        (
            "READONLY lets go of schemas",
            "if state.settings.mode_in_scope(subject) in READ_ONLY:",
            "if False:",
        ),
        ("IMPORT is set over live schemas", "if any(not each.deleted for each in affected):", "if False:"),
        (
            "force does not set IMPORT over live schemas",
            '!= "IMPORT" and not command.force:',
            '!= "IMPORT":',
        ),
        (
            "IMPORT leaves what is soft-deleted in the way",
            "        if affected:\n",
            "        if False:\n",
        ),
        (
            "IMPORT takes away what is referred to",
            "if state.referrers(each.subject, each.version, deleted=True):",
            "if False:",
        ),
        ("a level that is not one is set", "if level is not None and level not in LEVELS:", "if False:"),
        ("a context with subjects is deleted", "if state.subjects_in(command.subject):", "if False:"),
    ),
    *_of(
        f"{MODEL}/scoped_settings.py",
        [RULES],
        ("a subject lifts READONLY_OVERRIDE", 'if "READONLY_OVERRIDE" in {', 'if False and "READONLY_OVERRIDE" in {'),
    ),
    *_of(
        f"{MODEL}/state.py",
        [RULES],
        ("the highest id may fall", "ids.highest = max(ids.highest, highest)", "ids.highest = highest"),
        (
            "soft-deleted versions count as referrers",
            "found = (self._subjects[name][number] for name, number in places)\n"
            "        return [each for each in found if deleted or not each.deleted]",
            "found = (self._subjects[name][number] for name, number in places)\n        return list(found)",
        ),
        (
            "a reference to what is soft-deleted is not found",
            "found = self.version(subject, reference.version, deleted=True)",
            "found = self.version(subject, reference.version)",
        ),
        (
            "a body keeps the id that it had before it was gone",
            "                del ids.ids[record.body]",
            "                pass",
        ),
        (
            "the latest version may be a deleted one",
            "live = self.versions(subject)\n            return live[-1]",
            "live = self.versions(subject, deleted=True)\n            return live[-1]",
        ),
    ),
    *_of(
        "platform/fluvial/registry/service/policy.py",
        [OWNERSHIP],
        (
            "strangers change what is owned",
            "return None if principal == Principal(owner.name) != ANYONE else",
            "return None if True else",
        ),
        (
            "owners cannot change what they own",
            "return None if principal == Principal(owner.name) != ANYONE else",
            "return None if False else",
        ),
        ("nobody is named and takes a subject", "if principal == ANYONE else None", "if False else None"),
        (
            "unowned=deny lets everyone in",
            'return _closed(subject) if rules.unowned == "deny" else None',
            "return None",
        ),
        (
            "strangers change what holds for all subjects",
            "if principal == ANYONE and self._ownership.all_owned():",
            "if False:",
        ),
        (
            "anybody changes what administrators keep",
            '        if rules.admins:\n            return f"What holds',
            '        if False:\n            return f"What holds',
        ),
        (
            "a producer is changed by another",
            "known and known.name == principal.name",
            "known is not None",
        ),
        ("anybody introduces producers where administrators do", "if admins else None", "if False else None"),
    ),
    *_of(
        f"{MODEL}/ownership.py",
        [RULES],
        (
            "of two who change a producer the last wins",
            "if command.before != (None if known",
            "if False and (None if known",
        ),
        (
            "a subject is given to whom nobody knows",
            "if command.owner is not None and ownership.producer",
            "if False and ownership.producer",
        ),
        (
            "who held a subject before is forgotten",
            "history=(*known.history, change)[-HISTORY_MAX:]",
            "history=(change,)",
        ),
        (
            "the history of a subject is kept without bound",
            "history=(*known.history, change)[-HISTORY_MAX:]",
            "history=(*known.history, change)",
        ),
        ("giving to the owner is a change", "if known.owner == command.owner:", "if False:"),
    ),
    *_of(
        f"{MODEL}/registry.py",
        [OWNERSHIP, STATE],
        (
            "a stranger's serializer cannot start",
            "if decision is not None and not decision.records:\n                return decision",
            "pass",
        ),
        (
            "a stranger registers what is new",
            "if decision is not None and not decision.records:",
            "if decision is not None:",
        ),
        (
            "a write that failed is taken to have been one",
            "        self._behind = True\n        end = await",
            "        end = await",
        ),
        (
            "what others wrote in between is not taken in",
            "as_expected = as_expected and first == expected",
            "as_expected = True",
        ),
        (
            "ids are decided on side by side",
            "async with self._lock:\n            try:\n                async with asyncio.timeout",
            "if True:\n            try:\n                async with asyncio.timeout",
        ),
        (
            "who registered a version is not kept",
            "by = principal.name if isinstance(command, Register) and principal != ANYONE else None",
            "by = None",
        ),
    ),
)

WITHOUT_A_LEASE = "test_a_leader_without_its_lease_takes_only_what_others_confirm"
CUT_OFF = "test_a_controller_that_is_cut_off_holds_no_lease_when_its_successor_fences_it"
LEASE = (
    *_of(
        f"{BROKER}/core/raft/lease.py",
        [f"{UNIT_BROKER}/core/raft/test_core_lease.py"],
        (
            "a lease never ends",
            "return self.until_ms is not None and self._steady_ms() < self.until_ms",
            "return self.until_ms is not None",
        ),
        ("a lease is there from the start", "self.until_ms is not None and self", "self.until_ms is None or self"),
        (
            "a lease lasts as long as the session",
            " - self.session_timeout_ms // DRIFT_SHARE",
            "",
        ),
        ("an older heartbeat shortens a lease", "if self.until_ms is None or until_ms > self.until_ms:", "if True:"),
        ("only the first heartbeat counts", " or until_ms > self.until_ms:", ":"),
        ("a fenced broker keeps its lease", "        self.until_ms = None\n", "        pass\n"),
    ),
    *_of(
        f"{BROKER}/core/partition/writing.py",
        [f"{UNIT_BROKER}/server/partitions/test_server_replica.py::{WITHOUT_A_LEASE}"],
        (
            "a leader without a lease takes acks=1",
            'self.config.fluvial_durability != "memory" and not self.lease.valid:',
            "False:",
        ),
        (
            "a leader without a lease refuses acks=all",
            "if acks == ACKS_ALL:",
            "if acks == ACKS_ALL and self.lease is None:",
        ),
    ),
    *_of(
        f"{BROKER}/core/partition/writing.py",
        [f"{UNIT_BROKER}/server/partitions/test_server_lease.py"],
        (
            "a topic in memory needs a lease",
            'self.config.fluvial_durability != "memory" and not',
            "not",
        ),
    ),
    *_of(
        f"{BROKER}/core/cluster/broker_registry.py",
        [f"{UNIT_BROKER}/core/cluster/test_core_elections.py"],
        (
            "who has not replayed what is decided of its leaderships is caught up",
            "max(broker.epoch, self._leaders_version, self._handed_over.get(beat.node_id, 0))",
            "max(broker.epoch, self._leaders_version)",
        ),
    ),
    *_of(
        f"{BROKER}/core/cluster/broker_registry.py",
        [f"{UNIT_BROKER}/core/cluster/test_core_broker_registry.py"],
        (
            "who has not replayed the last change of leaders is caught up",
            "max(broker.epoch, self._leaders_version, self._handed_over.get(beat.node_id, 0))",
            "max(broker.epoch, self._handed_over.get(beat.node_id, 0))",
        ),
        (
            "who has not replayed its registration is caught up",
            "max(broker.epoch, self._leaders_version, self._handed_over.get(beat.node_id, 0))",
            "max(self._leaders_version, self._handed_over.get(beat.node_id, 0))",
        ),
        (
            "a heartbeat prolongs what may be missed",
            "        if is_caught_up:\n            self._caught_up_ms",
            "        if True:\n            self._caught_up_ms",
        ),
        (
            "nobody is taken to have missed leaders",
            "return now_ms < self._caught_up_ms.get(node_id, self._began_ms) + self._session_ms",
            "return False",
        ),
        (
            "a session ends a millisecond late",
            "now_ms < self.heard_ms(broker.node_id) + self._session_ms",
            "now_ms <= self.heard_ms(broker.node_id) + self._session_ms",
        ),
        (
            "a heartbeat begins no session",
            "        self._heard_ms[beat.node_id] = now_ms\n",
            "",
        ),
        (
            "what an earlier process replayed counts for the new one",
            "        self._replayed.pop(wanted.node_id, None)\n",
            "",
        ),
        (
            "a new controller begins without sessions",
            "        self._heard_ms = {broker.node_id: now_ms for broker in image.alive_brokers()}",
            "        self._heard_ms = {}",
        ),
    ),
    *_of(
        f"{BROKER}/server/quorum/controller.py",
        [f"{UNIT_BROKER}/server/quorum/test_server_controller.py"],
        (
            "a broker that is to be fenced gets a lease",
            "check_broker_epoch(self._authority.decided, beat.node_id, beat.broker_epoch)",
            "pass",
        ),
    ),
    *_of(
        f"{BROKER}/server/quorum/controller.py",
        [f"tests/sim/test_sim_failovers.py::{CUT_OFF}"],
        ("a controller that may be replaced prolongs leases", "and not self._node.quorum.surely_leads:", "and False:"),
    ),
    *_of(
        f"{BROKER}/server/coordinators/shards.py",
        [f"{UNIT_BROKER}/server/coordinators/test_server_coordinator_lease.py"],
        (
            "a coordinator answers without a lease",
            "is_latest = not shard.runtime.has_followers or self._node.lease.valid",
            "is_latest = True",
        ),
        (
            "a coordinator that is alone needs a lease",
            "is_latest = not shard.runtime.has_followers or self._node.lease.valid",
            "is_latest = self._node.lease.valid",
        ),
    ),
)

IDEMPOTENCE = (
    *_of(
        f"{BROKER}/core/partition/producers.py",
        [f"{UNIT_BROKER}/server/replication/test_server_idempotence.py"],
        (
            "a gap in a producer's sequence is taken",
            "if first == (last_stored + 1) & SEQUENCE_MAX:",
            "if first > last_stored:",
        ),
        (
            "what a producer repeats is stored again",
            "                    return stored\n",
            "                    return None\n",
        ),
        ("ten batches of a producer are remembered", "CACHED_BATCHES = 5", "CACHED_BATCHES = 10"),
        ("four batches of a producer are remembered", "CACHED_BATCHES = 5", "CACHED_BATCHES = 4"),
    ),
)

ORCHESTRATION = "tests/unit/fluvial/orchestration"
LAG = (
    *_of(
        "platform/fluvial/orchestration/checks/lag.py",
        [
            f"{ORCHESTRATION}/test_orchestration_lag.py",
        ],
        (
            "a partition that the log cut back makes up for others",
            "max(0, end - positions.get(partition, 0))",
            "end - positions.get(partition, 0)",
        ),
        (
            "a partition that was never read has no lag",
            "positions.get(partition, 0)) for",
            "positions.get(partition, end)) for",
        ),
        ("the lag is that of the worst partition", "return sum(max(0,", "return max(max(0,"),
        (
            "records of open transactions count",
            "isolation_level=IsolationLevel.READ_COMMITTED",
            "isolation_level=IsolationLevel.READ_UNCOMMITTED",
        ),
        ("the lag counts from the oldest record", "OffsetSpec.latest()", "OffsetSpec.earliest()"),
        ("a topic that is not there has no word", "absent=tuple(sorted(set(topics) - set(there)))", "absent=()"),
        (
            "a lag that is not known fails a run",
            '        logger.warning("the lag of %s is not known: %s", topic, error)\n        return None',
            "        raise",
        ),
        (
            "what Dagster remembers is where a range began",
            'row["partition"]: row["end"]',
            'row["partition"]: row["start"]',
        ),
    ),
    *_of(
        "platform/fluvial/orchestration/sensors/sensor_state.py",
        [f"{ORCHESTRATION}/test_sensor_state.py"],
        ("as many as are waited for do not start a run", "if standing.lag < lag_min:", "if standing.lag <= lag_min:"),
        ("new records shorten the wait after a failure", "before.position == standing.position", "before == standing"),
    ),
    *_of(
        "platform/fluvial/cli/group/groups.py",
        ["tests/unit/fluvial/cli/test_cli_groups.py"],
        (
            "a group's lag is only that of its first partition",
            'sum(each["lag"] or 0 for each in partitions)',
            'next((each["lag"] or 0 for each in partitions), 0)',
        ),
        (
            "a partition without a commit lags by all it holds",
            'if tp in committed else None,\n            "member_id"',
            'if tp in committed else end,\n            "member_id"',
        ),
    ),
)

COMMITS = (
    *_of(
        f"{DELTA}/commit.py",
        [f"{UNIT_DELTA}/test_delta_commit.py"],
        (
            "the commit of another run is taken for ours",
            'if isinstance(found, dict) and found.get("run") == stamp.run:',
            "if isinstance(found, dict):",
        ),
        (
            "a commit below newer ones is not found",
            "            return commit\n    return None",
            "            return commit\n        break\n    return None",
        ),
        ("every error is a lost race", "        if not is_lost_race(error):\n            raise", "        pass"),
        ("a lost race is an error", "        if not is_lost_race(error):\n            raise", "        raise"),
        ("what caused an error is not looked at", "java = java.getCause()", "java = None"),
        ("the condition of an error is not looked at", 'names.append(str(condition() or ""))', "pass"),
    ),
    *_of(
        f"{DELTA}/commit.py",
        ["tests/spark/test_spark_exactly_once.py::test_delta_itself_refuses_a_batch_that_is_in_the_table"],
        ("Delta takes a batch twice", '"txnVersion": str(stamp.batch), ', ""),
    ),
    *_of(
        f"{DELTA}/stamp.py",
        [f"{UNIT_DELTA}/test_delta_stamp.py", f"{UNIT_DELTA}/test_delta_broken_log.py"],
        ("a restored table is gone on with", 'if commit.operation == "RESTORE":', "if False:"),
        (
            "a stamp that is not known is passed over",
            '            raise TableError(\n                f"version',
            '            return None\n            raise TableError(\n                f"version',
        ),
        (
            "a table of someone else is begun anew",
            '    raise TableError(\n        f"{log.path} holds',
            '    return Position(version=version, stamp=None)\n    raise TableError(\n        f"{log.path} holds',
        ),
        ("a broken log is read on", "    log.check()\n", ""),
        (
            "a table stands where its newest commit began",
            "partition: end for partition, (_, end)",
            "partition: end for partition, (end, _)",
        ),
        (
            "commits of others end the search for a stamp",
            "        if stamp is not None:\n            return Position",
            "        if True:\n            return Position",
        ),
        (
            "where an adopted table began is lost",
            'adopted={int(partition): start for partition, start in body.get("adopted", {}).items()},',
            "adopted={},",
        ),
        (
            "the growth of a topic is lost",
            'body["growth"] = {"partitions": self.growth.count, "seen": self.growth.seen_ms}',
            "pass",
        ),
        ("all runs have one name", "return uuid.uuid4().hex", 'return "run"'),
    ),
    *_of(
        f"{DELTA}/provenance.py",
        [f"{UNIT_DELTA}/test_delta_provenance.py"],
        ("a version tells what a later one holds", "        if commit.version > wanted:\n            continue\n", ""),
        ("the end of a range is in it", "if end <= offset:", "if end < offset:"),
        ("the start of a range is not in it", "if start <= offset:", "if start < offset:"),
        (
            "every version that made rows again made this one",
            "if again is not None and again[0] <= offset < again[1]:",
            "if again is not None:",
        ),
        ("the end of what was made again is in it", "again[0] <= offset < again[1]", "again[0] <= offset <= again[1]"),
        ("what the log never held is looked for for ever", "if stamp.batch == 1:", "if False:"),
        ("a version has what it made again as well as new rows", "rewritten=bool(stamp.rewritten)", "rewritten=False"),
        ("a version below zero is the newest", "not 0 <= version <= newest", "not version <= newest"),
    ),
    *_swap(
        "test_of_two_writers_of_one_version_the_second_writes_nothing",
        ("a batch is committed on top of another version", "transaction.version != version or ", ""),
    ),
    *_swap(
        "test_a_commit_in_the_middle_of_a_swap_makes_it_fail",
        ("a commit in between does not conflict", "        java.readWholeTable()\n", ""),
    ),
    *_swap(
        "test_many_batches_leave_what_a_dict_holds",
        ("rows that were marked before come back", "marked |= vectors.rows(before)", "pass"),
    ),
    *_swap(
        "test_a_file_without_rows_is_removed_from_the_table",
        (
            "a file of which no row is left stays",
            "if add.numPhysicalRecords().contains(len(marked)):",
            "if False:",
        ),
        (
            "a swap counts no rows that it took away",
            "stamp = replace(stamp, removed=gone.num_rows - (pc.sum(gone[WRITTEN]).as_py() or 0))",
            "pass",
        ),
    ),
    *_swap(
        "test_what_cannot_be_swapped_is_told_beforehand",
        (
            "tables of other columns are swapped into",
            '_shape(session.read.format("delta").load(path)) == _shape(frame)',
            "True",
        ),
        (
            "any version of Delta will do",
            "delta_version(session) in DELTA_VERSIONS",
            "True",
        ),
    ),
    *_swap(
        "test_a_batch_is_swapped_in_once_whatever_its_checksum_says",
        (
            "a swap does not count its batch",
            "        self.java.updateSetTransaction(stamp.app_id, stamp.batch, none(self.session))\n",
            "",
        ),
        ("a batch that is in the table is swapped in again", " or transaction.holds(stamp):", ":"),
        ("a batch counts from the one after it", "each.version() >= stamp.batch", "each.version() > stamp.batch"),
        (
            "without a checksum a batch counts from the one after it",
            "int(self.java.txnVersion(name)) >= stamp.batch",
            "int(self.java.txnVersion(name)) > stamp.batch",
        ),
        (
            "a checksum of another commit is believed",
            "not _is_of_commit(session, checksum.get(), snapshot)",
            "False",
        ),
    ),
)

EVOLUTION: tuple[Mutation, ...] = (
    *_of(
        "platform/fluvial/spark/reader_schema.py",
        ["tests/unit/fluvial/spark/test_reader_schema.py"],
        ("a removed field is dropped", "        for field in gone.values():", "        for field in ():"),
        (
            "an alias is forgotten by the next version",
            "                aliases += (before.name, *before.aliases)\n",
            "                pass\n",
        ),
        (
            "a removed field without a default must be there",
            "            if not field.has_default:",
            "            if False:",
        ),
        ("an old name that is used again is an alias as well", "if alias not in names)", "if True)"),
        ("a record within is taken as it is", "self._merged(found) if isinstance(found, Record) else found", "found"),
    ),
    *_of(
        "platform/fluvial/tables/plan/evolution.py",
        ["tests/unit/fluvial/tables/test_evolution.py"],
        (
            "a new field keeps what is stored",
            "    return Source(None, Default(field.name, canonical(_alone(field))))",
            "    return Source(field.name, Keep())",
        ),
        ("a changed default changes nothing", " and column.default == field.default:", ":"),
        (
            "a promotion casts nothing",
            'the precision of a float")\n    return Keep(cast=True)',
            'the precision of a float")\n    return Keep()',
        ),
        ("a float becomes more exact", '    if stored.kind == "float" and sent.kind in _INTEGERS:', "    if False:"),
        ("any type becomes any other", "or wanted.kind not in _PROMOTIONS.get(stored.kind, ())", ""),
        ("a symbol that is gone stays", "    return Symbols(wanted.symbols, wanted.default)", "    return Keep()"),
        (
            "a symbol that was stored as another comes back",
            "    if any(each in wanted.symbols and each not in stored.symbols for each in sent.symbols):",
            "    if False:",
        ),
        ("null becomes required", "    if _is_nullable(sent) and not _is_nullable(wanted):", "    if False:"),
        (
            "what was left out is there",
            'raise NotInTableError(path, "is in older records and was left out of the table")',
            "return Source(None, Keep())",
        ),
        (
            "the scale of a decimal does not matter",
            'if stored.props.get("scale", 0) == wanted.props.get("scale", 0):',
            "if True:",
        ),
        (
            "a renamed column is left where it is",
            "renamed=tuple(each.name for each in stored.fields if each.name not in names)",
            "renamed=()",
        ),
    ),
)

SAVED = tuple(
    _of(
        "platform/fluvial/delta/saved_keys.py",
        ["tests/unit/fluvial/delta/test_saved_keys.py"],
        ("a saved index is believed though it is torn", 'raise ValueError("its checksum is wrong")', "pass"),
        ("rows that are marked are found", "is_gone[begin + np.asarray(each.marked, np.int64)] = True", "pass"),
        (
            "a file of which rows are missing counts as whole",
            "is_whole = np.bincount(file[kept], minlength=len(self.names)) == wanted",
            "is_whole = wanted >= 0",
        ),
        ("files keep the numbers that they had", "(np.cumsum(is_whole) - 1)[file[kept]]", "file[kept]"),
        ("what is about other columns is taken", 'if said != {"format": _FORMAT, **about}:', "if False:"),
        (
            "a disk that is full stops the batch",
            '        except OSError as error:\n            _log.warning("%s: the index',
            '        except KeyError as error:\n            _log.warning("%s: the index',
        ),
    )
)

MUTATIONS: tuple[Mutation, ...] = (*REGISTRY, *LEASE, *IDEMPOTENCE, *LAG, *COMMITS, *EVOLUTION, *SAVED)
