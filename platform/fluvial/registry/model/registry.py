"""
The registry as a service: commands in order, each into the log before it is answered.

One lock makes deciding, writing and replaying one step, so ids and versions are given once; reading needs no lock.
A registry that was killed comes back by reading the log from its start.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from fluvial.registry import errors
from fluvial.registry.formats.kinds import kind_of
from fluvial.registry.formats.schema_kind import TooComplexError
from fluvial.registry.model import records
from fluvial.registry.model.commands import Command, Draft, Register
from fluvial.registry.model.decide import decide
from fluvial.registry.model.decision import Decision
from fluvial.registry.model.library import Library
from fluvial.registry.model.ownership import Ownership, Registration
from fluvial.registry.model.registering import body_of, incompatibilities, look_up
from fluvial.registry.model.state import RegistryState
from fluvial.registry.service.auth import Authenticator
from fluvial.registry.service.policy import ANYONE, Action, OwnersPolicy, Rules
from log_broker.core.security.principal import Principal
from log_broker.errors import BrokerError, ErrorCode
from log_broker.interfaces import InternalLog, InternalRecord

Found = TypeVar("Found")

log = logging.getLogger(__name__)

SCHEMAS_TOPIC = "_schemas"
# Half of what the topic takes in one batch.
BATCH_BYTES_MAX = 512 * 1024
WRITE_SECONDS_MAX = 10.0
REFRESH_SECONDS_MAX = 5.0


class Registry:
    """Answers from memory, writes through `internal_log`. Not usable before `open`."""

    def __init__(self, internal_log: InternalLog, *, rules: Callable[[], Rules] = Rules) -> None:
        self.state = RegistryState()
        self.library = Library()
        self.policy = OwnersPolicy(self.state.ownership, rules)
        self.authenticator = Authenticator(self.state.ownership)
        self._log = internal_log
        self._lock = asyncio.Lock()
        self._next_offset = 0
        self._term: int | None = None  # of the log, in which the last write was decided
        self._refresh: asyncio.Task[None] | None = None  # that has not begun to read
        # After a write that failed we do not know what the log holds: read on before deciding anything more.
        self._behind = True

    async def open(self) -> None:
        """Read the log up to its end."""
        async with self._lock:
            await self._catch_up()

    @property
    def next_offset(self) -> int:
        """Where the log goes on behind what is known here."""
        return self._next_offset

    async def open_from(self, records: AsyncIterator[InternalRecord]) -> None:
        """Begin with what another copy of the log has, from its start."""
        async with self._lock:
            await self._replay(records)

    async def refresh(self) -> None:
        """Read what the log has by now. Many may ask at once; raises what reading raises."""
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._read_on())
            self._refresh.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._refresh)

    async def refresh_if_possible(self) -> bool | None:
        """Read what the log has by now and say whether there was anything; None when that cannot be had soon."""
        before = self.state.changes
        try:
            async with asyncio.timeout(REFRESH_SECONDS_MAX):
                await self.refresh()
        except Exception as error:
            log.info("%s cannot be read now: %s", SCHEMAS_TOPIC, error)
            return None
        return self.state.changes != before

    async def _read_on(self) -> None:
        async with self._lock:
            self._refresh = None  # who comes from here on may want what this does not see
            await self._catch_up()

    async def _catch_up(self) -> None:
        await self._replay(self._log.read(self._next_offset))
        self._behind = False

    async def _replay(self, found: AsyncIterator[InternalRecord]) -> None:
        async for each in found:
            self._next_offset = each.offset + 1
            try:
                record = records.decode(each.key, each.value)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                # A record that is not ours must not keep every other schema from being served.
                log.warning("%s: record %d is passed over: %s", SCHEMAS_TOPIC, each.offset, error)
                continue
            if isinstance(record, records.SchemaRecord):
                record = replace(record, at_ms=each.timestamp)
            if record is not None:
                self.state.replay(record)

    async def apply(self, command: Command, *, principal: Principal = ANYONE, action: Action) -> Any:
        """
        Carry out a command and return its reply once it is in the log.

        Raises `RefusedError`, also when the log does not take it. A caller that is cancelled leaves nothing half done.
        """
        return await asyncio.shield(self._apply(command, principal, action))

    async def _apply(self, command: Command, principal: Principal, action: Action) -> Any:
        async with self._lock:
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    term = await self._log.lead()
            except Exception as error:
                raise errors.unknown_primary(str(error) or type(error).__name__) from error
            if self._behind or term != self._term:
                async with _store("reading"):
                    await self._catch_up()
                self._term = term
            decision = await self._decide(command, principal, action)
            if decision.records:
                async with _store("writing to"):
                    await self._write(self._with_author(decision.records, command, principal), term)
            return decision.reply

    async def _write(self, written: list[records.Record], term: int | None) -> None:
        self._behind = True
        end = await self._append([records.encode(each) for each in written], term)
        if end is not None:
            self._next_offset = end
            for each in written:
                self.state.replay(each)
            self._behind = False
        else:
            # Something stands in between that we have not seen: the log's order decides.
            await self._catch_up()

    async def _append(self, encoded: list[tuple[bytes, bytes | None]], term: int | None) -> int | None:
        """Write records behind one another and return where the log ends; None when something came in between."""
        expected, as_expected = self._next_offset, True
        for number, batch in enumerate(_batches(encoded)):
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    first = await self._log.append(batch, term)
            except errors.RefusedError as error:
                if number == 0:
                    raise
                # Nothing of this batch was written, but the ones before it were.
                raise errors.store_failed(f"Only a part of the change was written: {error}") from error
            as_expected = as_expected and first == expected
            expected = first + len(batch)
        return expected if as_expected else None

    def _with_author(
        self, decided: tuple[records.Record, ...], command: Command, principal: Principal
    ) -> list[records.Record]:
        """What is decided, as of now, and who had it registered."""
        now_ms = time.time_ns() // 1_000_000
        timed = [replace(each, at_ms=now_ms) if isinstance(each, records.SchemaRecord) else each for each in decided]
        by = principal.name if isinstance(command, Register) and principal != ANYONE else None
        return [*timed, *_registrations(self.state.ownership, decided, by)]

    async def known(self, command: Register) -> records.SchemaRecord | None:
        """Return the version under which a schema is registered already, None when it takes a write to say so."""
        try:
            async with self._lock:
                decision = await self._decided(command)
        except errors.RefusedError:
            return None
        return None if decision.records else decision.reply

    async def _decide(self, command: Command, principal: Principal, action: Action) -> Decision:
        reason = self.policy.authorize(principal, command.subject, action)
        if reason is None:
            return await self._decided(command)
        if isinstance(command, Register):
            # Registering what is registered changes nothing; serializers do it at every start.
            try:
                decision = await self._decided(command)
            except errors.RefusedError:
                decision = None
            if decision is not None and not decision.records:
                return decision
        raise errors.forbidden(reason)

    async def _decided(self, command: Command) -> Decision:
        return await asyncio.to_thread(decide, self.state, self.library, command)

    async def look_up(
        self, subject: str, draft: Draft, *, normalize: bool, deleted: bool
    ) -> records.SchemaRecord | None:
        """The version of `subject` under which a schema is registered, or None."""
        return await self.beside(
            lambda: look_up(self.state, self.library, subject, draft, normalize=normalize, deleted=deleted)
        )

    async def judge(
        self, subject: str, draft: Draft, earlier: list[records.SchemaRecord], *, normalize: bool
    ) -> list[str]:
        """Why `draft` may not follow `earlier` under the subject's level; empty when it may."""

        def work() -> list[str]:
            body = body_of(self.state, self.library, subject, draft, normalize=normalize)
            return incompatibilities(self.state, self.library, subject, body, earlier)

        return await self.beside(work)

    async def formatted(self, body: records.Body, context: str, form: str) -> str | None:
        """The text of a body that is registered in `context` in another form, None where there is none."""
        kind = kind_of(body.schema_type)
        try:
            return await self.beside(lambda: kind.formatted(self.library.parsed(self.state, body, context), form))
        except TooComplexError as error:
            raise errors.invalid_schema(str(error), schema_type=body.schema_type) from None

    async def ids_of_guid(self, guid: str) -> list[tuple[str, int]]:
        """See `RegistryState.ids_of_guid`."""
        if not self.state.knows_guids:
            await self.beside(lambda: self.state.ids_of_guid(guid))
        return self.state.ids_of_guid(guid)

    def characters(self, body: records.Body) -> int:
        """How much text there is to parse for a body."""
        try:
            return len(body.schema) + sum(map(len, self.state.resolve(body.references).values()))
        except (LookupError, TooComplexError):
            return len(body.schema)

    async def beside(self, work: Callable[[], Found]) -> Found:
        """
        Have `work`, which only reads, done beside the event loop: parsing and comparing take as long as a client likes,
        within their bounds.
        """
        # A thread must not look on while the loop replays a record.
        async with self._lock:
            return await asyncio.to_thread(work)


@asynccontextmanager
async def _store(doing: str) -> AsyncIterator[None]:
    """Turn what the log refuses, and nothing else, into the error that Confluent's registry answers."""
    try:
        yield
    except errors.RefusedError:
        raise
    except BrokerError as error:
        if error.code == ErrorCode.MESSAGE_TOO_LARGE:
            raise errors.schema_too_large() from error
        raise _store_failed(doing, error) from error
    except (OSError, TimeoutError) as error:
        raise _store_failed(doing, error) from error


def _store_failed(doing: str, error: Exception) -> errors.RefusedError:
    log.error("error while %s %s", doing, SCHEMAS_TOPIC, exc_info=error)
    return errors.store_failed(f"Error while {doing} the {SCHEMAS_TOPIC} topic: {error or type(error).__name__}")


def _batches(encoded: list[tuple[bytes, bytes | None]]) -> Iterator[list[tuple[bytes, bytes | None]]]:
    """Records in batches that the topic takes, all of a usual change in one."""
    batch: list[tuple[bytes, bytes | None]] = []
    held = 0
    for key, value in encoded:
        size = len(key) + len(value or b"")
        if batch and held + size > BATCH_BYTES_MAX:
            yield batch
            batch, held = [], 0
        batch.append((key, value))
        held += size
    yield batch


def _registrations(ownership: Ownership, decided: Iterable[records.Record], by: str | None) -> list[Registration]:
    """What changes in who registered which version."""
    found = []
    for each in decided:
        match each:
            case records.SchemaRecord(deleted=False):
                registration = Registration(subject=each.subject, version=each.version, by=by)
            case records.SchemaGone():
                registration = Registration(subject=each.subject, version=each.version, by=None)
            case _:
                continue
        if registration.by != ownership.registered_by(registration.subject, registration.version):
            found.append(registration)
    return found
