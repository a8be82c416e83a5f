"""The broker's question, whether a record may enter its topic, answered from the registry's memory."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from fluvial.registry.errors import RefusedError
from fluvial.registry.formats.kinds import kind_of
from fluvial.registry.formats.schema_kind import SkippableKind, UndecodableError
from fluvial.registry.model.records import Body
from fluvial.registry.model.registry import Registry
from log_broker.interfaces import Cause, Contract, Skip, Violation

MAGIC = b"\0"
# The magic byte and the schema's id, four bytes with the highest first.
PREFIX_BYTES = 5
SUBJECTS_SHOWN_MAX = 5
CONTRACTS_MAX = 10_000
FRAMES_MAX = 10_000
FIELD_NAMES_MAX = 10

# A schema up to this size is read on the broker's event loop when its first record comes; a larger one beside it.
INLINE_CHARACTERS_MAX = 64 * 1024
COMPILED_MAX = 1_000
COMPILED_BYTES_MAX = 64 * 1024 * 1024

Check = Callable[[bytes, int], None]

log = logging.getLogger(__name__)

NOT_READ_YET = Violation("its schema is being read; try again", cause=Cause.REGISTRY)


class Compiled(NamedTuple):
    """What data of one schema are checked with; `fault` says why they cannot be."""

    check: Check | None = None
    skip: Skip | None = None
    takes_null: bool = False
    record_name: str | None = None
    key_field: str | None = None
    fault: str = ""
    bytes_held: int = 0


class RegistryValidator:
    """
    A `RecordValidator` that knows the live versions of every subject.

    What it has found out about a contract and an id it keeps until the registry changes; what it has made of a schema,
    for as long as there is room.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes = -1
        self._contracts: dict[Contract, ContractCheck] = {}
        self._learning: set[asyncio.Task[bool | None]] = set()
        self._in_turn = asyncio.Lock()
        self._compiled: OrderedDict[Body, Compiled] = OrderedDict()
        self._compiled_bytes = 0
        self._wanted: dict[Body, None] = {}

    def check_of(self, contract: Contract) -> "ContractCheck":
        """See `RecordValidator.check_of`."""
        changes = self._registry.state.changes
        if changes != self._changes or len(self._contracts) > CONTRACTS_MAX:
            self._changes = changes
            self._contracts.clear()
        check = self._contracts.get(contract)
        if check is None:
            check = self._contracts[contract] = ContractCheck(self._registry, contract, self.compiled)
        return check

    def owner_of(self, topic: str) -> str | None:
        """See `KnowsOwners.owner_of`."""
        owner = self._registry.state.ownership.owner(f"{topic}-value")
        return None if owner is None else owner.name

    def compiled(self, body: Body) -> Compiled | None:
        """What data of a schema are checked with; None where that takes a `learn`."""
        found = self._compiled.get(body)
        if found is None:
            if self._registry.characters(body) > INLINE_CHARACTERS_MAX:
                self._wanted[body] = None
                return None
            found = self._compile(body)
            self._keep(body, found)
        return found

    def _compile(self, body: Body) -> Compiled:
        try:
            kind, parsed = kind_of(body.schema_type), self._registry.library.parsed(self._registry.state, body)
            check = kind.compile_check(parsed)
            if not isinstance(kind, SkippableKind):
                return Compiled(check)
            return Compiled(
                check,
                kind.compile_skip(parsed),
                kind.takes_null(parsed),
                kind.record_name(parsed),
                kind.key_field(parsed),
                bytes_held=parsed.bytes_held,
            )
        except RefusedError as error:
            return Compiled(fault=str(error))
        except RecursionError:
            return Compiled(fault="its types are nested too deeply")

    def _keep(self, body: Body, compiled: Compiled) -> None:
        self._compiled[body] = compiled
        self._compiled_bytes += compiled.bytes_held
        while len(self._compiled) > COMPILED_MAX or self._compiled_bytes > COMPILED_BYTES_MAX:
            _, oldest = self._compiled.popitem(last=False)
            self._compiled_bytes -= oldest.bytes_held

    def learn(self, then: Callable[[bool], None]) -> None:
        """
        See `LearningValidator.learn`: a schema that was registered on another node may not be known here yet, or one
        that is known is too large to be read on the event loop.
        """
        task = asyncio.ensure_future(self._learn())
        self._learning.add(task)

        def learned(task: "asyncio.Task[bool | None]") -> None:
            self._learning.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("what is valid cannot be learned", exc_info=error)
            then(not task.cancelled() and task.exception() is None and task.result() is not None)

        task.add_done_callback(learned)

    async def _learn(self) -> bool | None:
        # In the order in which they were asked for, so that batches keep theirs.
        async with self._in_turn:
            found = await self._registry.refresh_if_possible()
            while self._wanted:
                body = next(iter(self._wanted))
                compiled = await self._registry.beside(lambda: self._compile(body))  # noqa: B023 (awaited at once)
                self._keep(body, compiled)
                self._wanted.pop(body, None)
            return found


class ContractCheck:
    """How the keys or values of one topic stand to the registry as it is."""

    def __init__(self, registry: Registry, contract: Contract, compiled: Callable[[Body], Compiled | None]) -> None:
        self.accepted: dict[bytes, Skip | None] = {}
        self._registry = registry
        self._compiled = compiled
        self._contract = contract
        self._part = "key" if contract.is_key else "value"
        self._refused: dict[bytes, Violation] = {}
        self._checks: dict[bytes, Check] = {}
        self._keyless: Violation | None = None
        self._is_keyless_known = contract.is_key or contract.level != "payload"

    @property
    def keyless(self) -> Violation | None:
        """See `RecordCheck.keyless`: by the latest version, which no subject by the record's name has for a topic."""
        if not self._is_keyless_known:
            latest = self._latest()
            if latest is None:
                return NOT_READ_YET
            if latest.key_field is not None:
                self._keyless = Violation(
                    f'the key is null, and the key of a record is its field {latest.key_field} ("fluvial.key" in the '
                    f"latest schema, {self._place()}): send its value as the key",
                    latest.key_field,
                    Cause.NO_KEY,
                )
            self._is_keyless_known = True
        return self._keyless

    def violation(self, datum: bytes | None) -> Violation | None:
        """See `RecordCheck.violation`."""
        if datum is None:
            return None if self._contract.takes_null else self._null_fault()
        frame = datum[:PREFIX_BYTES]
        if len(frame) < PREFIX_BYTES or frame[:1] != MAGIC:
            return Violation(
                f"the {self._part} is not in the registry's wire format: "
                f"it does not start with the byte 0 and a schema id of four bytes ({self._place()})",
                cause=Cause.FRAMING,
            )
        if frame not in self.accepted and frame not in self._checks:
            refused = self._refused.get(frame)
            if refused is None:
                refused = self._learn_frame(frame)
                if refused is not None and refused is not NOT_READ_YET and len(self._refused) < FRAMES_MAX:
                    self._refused[frame] = refused
            if refused is not None:
                return refused
        return None if self._contract.level == "id" else self._undecodable(frame, datum)

    def _learn_frame(self, frame: bytes) -> Violation | None:
        """Say why an id that has not been seen yet is none of this contract's, or note that it is."""
        refused = self._frame_refused(frame)
        if refused is not None:
            return refused
        if self._contract.level == "id":
            self.accepted[frame] = None
            return None
        schema_id = int.from_bytes(frame[1:], "big")
        compiled = self._compiled(self._body(schema_id))
        if compiled is None:
            return NOT_READ_YET
        if compiled.check is None:
            reason = f"the {self._part} cannot be held against schema id {schema_id}: {compiled.fault}"
            return Violation(reason, cause=Cause.REGISTRY)
        self._checks[frame] = compiled.check
        if compiled.skip is not None:
            self.accepted[frame] = compiled.skip
        return None

    def _undecodable(self, frame: bytes, datum: bytes) -> Violation | None:
        try:
            self._checks[frame](datum, PREFIX_BYTES)
        except UndecodableError as error:
            schema_id = int.from_bytes(frame[1:], "big")
            reason = f"the {self._part} does not decode under schema id {schema_id}: {error}"
            return Violation(reason, ".".join(error.path[:FIELD_NAMES_MAX]))
        return None

    def _frame_refused(self, frame: bytes) -> Violation | None:
        """Say why a schema's id is none of this contract's, if it is not."""
        schema_id = int.from_bytes(frame[1:], "big")
        state = self._registry.state
        if not state.is_registered(schema_id):
            return Violation(
                f"schema id {schema_id} of the {self._part} is not registered ({self._place()}): "
                f"register the schema and write with the id it gets",
                cause=Cause.SCHEMA_ID,
            )
        contract = self._contract
        if contract.strategy == "TopicNameStrategy":
            subject: str | None = subject_of(contract.topic, is_key=contract.is_key)
        else:
            compiled = self._compiled(self._body(schema_id))
            if compiled is None:
                return NOT_READ_YET
            if compiled.fault:
                reason = f"schema id {schema_id} of the {self._part} names no subject: {compiled.fault}"
                return Violation(reason, cause=Cause.REGISTRY)
            subject = self._subject_by_record(compiled.record_name)
        if subject is not None and state.is_registered(schema_id, subject):
            return None
        subjects = sorted({each.subject for each in state.places(schema_id) or ()})
        shown = ", ".join(subjects[:SUBJECTS_SHOWN_MAX]) + (" …" if len(subjects) > SUBJECTS_SHOWN_MAX else "")
        return Violation(
            f"schema id {schema_id} of the {self._part} is registered under {shown}, not under {subject}: "
            f"if it is the right schema, register it there too",
            cause=Cause.SCHEMA_ID,
        )

    def _subject_by_record(self, name: str | None) -> str | None:
        """The subject that an id must be of; None where the schema is no record, whose name is asked for."""
        if name is None:
            return None
        return name if self._contract.strategy == "RecordNameStrategy" else f"{self._contract.topic}-{name}"

    def _body(self, schema_id: int) -> Body:
        body = self._registry.state.body(schema_id)
        assert body is not None, "asked for registered ids only"
        return body

    def _null_fault(self) -> Violation | None:
        """Why null may not enter; it may where it is among the data of the latest version: serializers send it so."""
        latest = self._latest()
        if latest is None:
            return NOT_READ_YET
        return None if latest.takes_null else self._null_refused()

    def _latest(self) -> Compiled | None:
        """What the latest version asks, nothing where there is no such version; None where that takes a `learn`."""
        contract = self._contract
        if contract.strategy != "TopicNameStrategy":
            return Compiled()
        latest = self._registry.state.version(subject_of(contract.topic, is_key=contract.is_key), -1)
        return Compiled() if latest is None else self._compiled(latest.body)

    def _null_refused(self) -> Violation:
        if self._contract.is_key:
            reason = f"the key is null, which its schema does not allow ({self._place()})"
            return Violation(reason, cause=Cause.NO_KEY)
        return Violation(
            f"the value is null, which its schema does not allow, and the topic is not compacted, "
            f"so it is no tombstone ({self._place()})",
            cause=Cause.NULL,
        )

    def _place(self) -> str:
        contract = self._contract
        if contract.strategy == "TopicNameStrategy":
            return f"subject {subject_of(contract.topic, is_key=contract.is_key)}"
        return f"{contract.strategy} of topic {contract.topic}"


def subject_of(topic: str, *, is_key: bool) -> str:
    """The subject that a topic's keys or values follow (Confluent's TopicNameStrategy)."""
    return f"{topic}-key" if is_key else f"{topic}-value"
