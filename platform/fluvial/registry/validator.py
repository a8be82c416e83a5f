"""The broker's question, whether a record may enter its topic, answered from the registry's memory."""

import asyncio
from collections.abc import Callable

from fluvial.registry.avro_skip import UndecodableError, compile_check
from fluvial.registry.errors import RefusedError
from fluvial.registry.registry import Registry

MAGIC = b"\0"
# The magic byte and the schema's id, four bytes with the highest first.
PREFIX_BYTES = 5
SUBJECTS_SHOWN_MAX = 5
TOPICS_MAX = 10_000

Check = Callable[[bytes, int], None]


class RegistryValidator:
    """
    A `RecordValidator` that knows the live versions of the subjects `<topic>-key` and `<topic>-value`.

    It looks a record's first five bytes up in a table per subject; the tables are thrown away when the registry
    changes. Null is let through: a tombstone or a record without key has no schema to break.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._changes = -1
        self._ids: dict[tuple[str, bool], frozenset[bytes]] = {}
        self._checks: dict[bytes, Check] = {}
        self._learning: set[asyncio.Task[bool | None]] = set()

    def refuse_reason(self, topic: str, *, is_key: bool, level: str, payload: bytes | memoryview | None) -> str | None:
        """Why this key or value may not enter `topic`, None when it may; `level` is `id` or `payload`."""
        if payload is None:
            return None
        prefix = bytes(payload[:PREFIX_BYTES])
        if prefix not in self.accepted_prefixes(topic, is_key=is_key):
            return self._unknown(topic, is_key, prefix, len(payload))
        return None if level == "id" else self._undecodable(prefix, bytes(payload))

    def learn(self, then: Callable[[bool], None]) -> None:
        """See `LearningValidator.learn`: a schema that was registered on another node may not be known here yet."""
        task = asyncio.ensure_future(self._registry.refresh_if_possible())
        self._learning.add(task)

        def learned(task: "asyncio.Task[bool | None]") -> None:
            self._learning.discard(task)
            then(not task.cancelled() and task.exception() is None and task.result() is not None)

        task.add_done_callback(learned)

    def accepted_prefixes(self, topic: str, *, is_key: bool) -> frozenset[bytes]:
        """
        The first five bytes that a key or value of `topic` may have at level `id`.

        A caller with many records asks once and looks each up itself; the answer holds until its turn of the loop ends.
        """
        changes = self._registry.state.changes
        if changes != self._changes or len(self._ids) > TOPICS_MAX:
            self._changes = changes
            self._ids.clear()
            self._checks.clear()
        known = self._ids.get((topic, is_key))
        if known is None:
            versions = self._registry.state.versions(subject_of(topic, is_key=is_key))
            known = frozenset(MAGIC + each.id.to_bytes(4, "big") for each in versions)
            self._ids[(topic, is_key)] = known
        return known

    def _unknown(self, topic: str, is_key: bool, prefix: bytes, length: int) -> str:
        part, subject = ("key" if is_key else "value"), subject_of(topic, is_key=is_key)
        if length < PREFIX_BYTES or prefix[:1] != MAGIC:
            return (
                f"the {part} is not in the registry's wire format: "
                f"it does not start with the byte 0 and a schema id of four bytes (subject {subject})"
            )
        schema_id = int.from_bytes(prefix[1:], "big")
        places = self._registry.state.places(schema_id)
        if not places:
            return f"schema id {schema_id} of the {part} is not registered (subject {subject})"
        subjects = sorted({each.subject for each in places})
        shown = ", ".join(subjects[:SUBJECTS_SHOWN_MAX]) + (" …" if len(subjects) > SUBJECTS_SHOWN_MAX else "")
        return f"schema id {schema_id} of the {part} is registered under {shown}, not under {subject}"

    def _undecodable(self, prefix: bytes, payload: bytes) -> str | None:
        try:
            self._check(prefix)(payload, PREFIX_BYTES)
        except (UndecodableError, RefusedError) as error:
            schema_id = int.from_bytes(prefix[1:], "big")
            return f"the payload does not decode under schema id {schema_id}: {error}"
        return None

    def _check(self, prefix: bytes) -> Check:
        check = self._checks.get(prefix)
        if check is None:
            state = self._registry.state
            body = state.body(int.from_bytes(prefix[1:], "big"))
            assert body is not None, "an accepted prefix is of a registered id"
            check = self._checks[prefix] = compile_check(self._registry.library.parsed(state, body).schema)
        return check


def subject_of(topic: str, *, is_key: bool) -> str:
    """The subject that a topic's keys or values follow (Confluent's TopicNameStrategy)."""
    return f"{topic}-key" if is_key else f"{topic}-value"
