"""The broker's question, whether a record may enter its topic, answered from the registry's memory."""

import asyncio
from collections.abc import Callable

from fluvial.registry.errors import RefusedError
from fluvial.registry.kinds import kind_of
from fluvial.registry.registry import Registry
from fluvial.registry.schema_kind import Parsed, SchemaKind, SkippableKind, UndecodableError
from log_broker.interfaces import Contract, Skip, Violation

MAGIC = b"\0"
# The magic byte and the schema's id, four bytes with the highest first.
PREFIX_BYTES = 5
SUBJECTS_SHOWN_MAX = 5
CONTRACTS_MAX = 10_000
FRAMES_MAX = 10_000
FIELD_NAMES_MAX = 10

Check = Callable[[bytes, int], None]


class RegistryValidator:
    """
    A `RecordValidator` that knows the live versions of every subject.

    What it has found out about a contract and an id it keeps until the registry changes.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes = -1
        self._contracts: dict[Contract, ContractCheck] = {}
        self._learning: set[asyncio.Task[bool | None]] = set()

    def check_of(self, contract: Contract) -> "ContractCheck":
        """See `RecordValidator.check_of`."""
        changes = self._registry.state.changes
        if changes != self._changes or len(self._contracts) > CONTRACTS_MAX:
            self._changes = changes
            self._contracts.clear()
        check = self._contracts.get(contract)
        if check is None:
            check = self._contracts[contract] = ContractCheck(self._registry, contract)
        return check

    def learn(self, then: Callable[[bool], None]) -> None:
        """See `LearningValidator.learn`: a schema that was registered on another node may not be known here yet."""
        task = asyncio.ensure_future(self._registry.refresh_if_possible())
        self._learning.add(task)

        def learned(task: "asyncio.Task[bool | None]") -> None:
            self._learning.discard(task)
            then(not task.cancelled() and task.exception() is None and task.result() is not None)

        task.add_done_callback(learned)


class ContractCheck:
    """How the keys or values of one topic stand to the registry as it is."""

    def __init__(self, registry: Registry, contract: Contract) -> None:
        self.accepted: dict[bytes, Skip | None] = {}
        self._registry = registry
        self._contract = contract
        self._part = "key" if contract.is_key else "value"
        self._refused: dict[bytes, Violation] = {}
        self._checks: dict[bytes, Check] = {}

    def violation(self, datum: bytes | None) -> Violation | None:
        """See `RecordCheck.violation`."""
        if datum is None:
            return None if self._contract.takes_null or self._null_is_a_datum() else self._null_refused()
        frame = datum[:PREFIX_BYTES]
        if len(frame) < PREFIX_BYTES or frame[:1] != MAGIC:
            return Violation(
                f"the {self._part} is not in the registry's wire format: "
                f"it does not start with the byte 0 and a schema id of four bytes ({self._place()})"
            )
        if frame not in self.accepted and frame not in self._checks:
            refused = self._refused.get(frame)
            if (
                refused is None
                and (refused := self._learn_frame(frame)) is not None
                and len(self._refused) < FRAMES_MAX
            ):
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
        try:
            kind, parsed = self._schema(schema_id)
        except RefusedError as error:
            return Violation(f"the {self._part} cannot be held against schema id {schema_id}: {error}")
        self._checks[frame] = kind.compile_check(parsed)
        if isinstance(kind, SkippableKind):
            self.accepted[frame] = kind.compile_fast(parsed)
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
        places = self._registry.state.places(schema_id)
        if not places:
            return Violation(
                f"schema id {schema_id} of the {self._part} is not registered ({self._place()}): "
                f"register the schema and write with the id it gets"
            )
        try:
            subject = self._subject_of(schema_id)
        except RefusedError as error:
            return Violation(f"schema id {schema_id} of the {self._part} names no subject: {error}")
        subjects = sorted({each.subject for each in places})
        if subject in subjects:
            return None
        shown = ", ".join(subjects[:SUBJECTS_SHOWN_MAX]) + (" …" if len(subjects) > SUBJECTS_SHOWN_MAX else "")
        return Violation(
            f"schema id {schema_id} of the {self._part} is registered under {shown}, not under {subject}: "
            f"if it is the right schema, register it there too"
        )

    def _subject_of(self, schema_id: int) -> str | None:
        """The subject that an id must be of; None where the strategy asks for a record and the schema is none."""
        contract = self._contract
        if contract.strategy == "TopicNameStrategy":
            return subject_of(contract.topic, is_key=contract.is_key)
        kind, parsed = self._schema(schema_id)
        name = kind.record_name(parsed) if isinstance(kind, SkippableKind) else None
        if name is None:
            return None
        return name if contract.strategy == "RecordNameStrategy" else f"{contract.topic}-{name}"

    def _schema(self, schema_id: int) -> tuple[SchemaKind, Parsed]:
        state = self._registry.state
        body = state.body(schema_id)
        assert body is not None, "asked for registered ids only"
        return kind_of(body.schema_type), self._registry.library.parsed(state, body)

    def _null_is_a_datum(self) -> bool:
        """Whether the latest version of the subject has null among its data, which serializers send as no bytes."""
        contract = self._contract
        if contract.strategy != "TopicNameStrategy":
            return False
        latest = self._registry.state.version(subject_of(contract.topic, is_key=contract.is_key), -1)
        try:
            if latest is None:
                return False
            kind, parsed = self._schema(latest.id)
        except RefusedError:
            return False
        return isinstance(kind, SkippableKind) and kind.takes_null(parsed)

    def _null_refused(self) -> Violation:
        if self._contract.is_key:
            return Violation(f"the key is null, which its schema does not allow ({self._place()})")
        return Violation(
            f"the value is null, which its schema does not allow, and the topic is not compacted, "
            f"so it is no tombstone ({self._place()})"
        )

    def _place(self) -> str:
        contract = self._contract
        if contract.strategy == "TopicNameStrategy":
            return f"subject {subject_of(contract.topic, is_key=contract.is_key)}"
        return f"{contract.strategy} of topic {contract.topic}"


def subject_of(topic: str, *, is_key: bool) -> str:
    """The subject that a topic's keys or values follow (Confluent's TopicNameStrategy)."""
    return f"{topic}-key" if is_key else f"{topic}-value"
