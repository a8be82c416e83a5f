"""
The server of Arrow Flight SQL: commands, tickets and actions as gRPC's threads bring them.

Tickets and handles hold what they stand for, so that nothing is kept for a client between its calls.
"""

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from fluvial.cluster.users import ClusterUsers
from fluvial.errors import FluvialError
from fluvial.http_exposure import Exposure
from fluvial.http_server import listen
from fluvial.serve.errors import BadRequestError, RefusedStatementError
from fluvial.serve.flight_sql import catalog
from fluvial.serve.flight_sql.calls import Calls, told
from fluvial.serve.flight_sql.door import FlightDoor
from fluvial.serve.flight_sql.handles import Handle
from fluvial.serve.flight_sql.messages import message, packed, unpacked
from fluvial.serve.flight_sql.pem import certificate_and_key
from fluvial.serve.flight_sql.reading import NEWEST, Headers, Reading
from fluvial.serve.flight_sql.sign_in import Handshakes, SignIn

_HEADERS = "headers"
_PREPARED = "CommandPreparedStatementQuery"
_PATIENCE_S = 2.0
_PREPARE, _FORGET = "CreatePreparedStatement", "ClosePreparedStatement"
_ACTIONS = {_PREPARE: "makes a handle of a statement", _FORGET: "does nothing: handles are not kept"}


class FlightPortError(FluvialError):
    """
    The port for Flight SQL cannot be listened on.
    """


class FlightSqlServer(flight.FlightServerBase):  # type: ignore[misc]
    """
    Listens from when it is made until :meth:`close`; made in the event loop that answers.
    """

    def __init__(self, door: FlightDoor, exposure: Exposure, port: int, users: ClusterUsers | None) -> None:
        loop = asyncio.get_running_loop()
        self._door = door
        self._calls = Calls(loop)
        _demand_free(exposure.host, port)
        certificate = exposure.certificate
        try:
            super().__init__(
                exposure.flight_location(port),
                auth_handler=Handshakes(),
                tls_certificates=None if certificate is None else [certificate_and_key(Path(certificate))],
                middleware={"sign-in": SignIn(users, loop), _HEADERS: Headers()},
            )
        except pa.ArrowException as error:
            raise FlightPortError(f"{exposure.host}:{port}: {error}; choose another --flight-port") from error

    async def close(self) -> None:
        """
        Take no more calls and end those that run. Who does not read an answer that is sent is left alone.
        """
        self._calls.stop()
        loop, is_down = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            # Not by shutdown(): only this takes pyarrow's own shutdown at the exit of the process away.
            with self:
                pass
            with suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(is_down.set)

        # It returns when every answer is read: a thread that is no daemon would keep the process for it.
        threading.Thread(target=shut_down, name="flight-shutdown", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(is_down.wait(), _PATIENCE_S)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """
        Say by which ticket a command's answer is got, and what it looks like.
        """
        with self._place():
            name, command = _command(descriptor)
            if name in catalog.SCHEMAS:
                schema, ticket = catalog.schema_of(name, command), descriptor.command
            else:
                handle = _query(name, command, _reading(context))
                # Who has prepared a statement was told its columns, and the answer brings them.
                schema = None if name == _PREPARED else self._schema(context, handle)
                ticket = packed("TicketStatementQuery", statement_handle=handle.encoded())
            return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(flight.Ticket(ticket), [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """
        Say what a command's answer looks like.
        """
        with self._place():
            name, command = _command(descriptor)
            if name in catalog.SCHEMAS:
                return flight.SchemaResult(catalog.schema_of(name, command))
            return flight.SchemaResult(self._schema(context, _query(name, command, _reading(context))))

    def do_get(self, context: Any, ticket: Any) -> Any:
        """
        Give the answer that a ticket stands for.
        """
        leave = self._calls.enter()
        try:
            stream = flight.RecordBatchStream(self._answer(context, ticket.ticket))
            # It lives until it is sent, or nobody takes it.
            weakref.finalize(stream, leave)
        except BaseException:
            leave()
            raise
        return stream

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """
        Bind the values of parameters to a prepared statement: a new handle is the answer.
        """
        with self._place():
            name, command = _command(descriptor)
            if name != _PREPARED:
                raise RefusedStatementError(f"{name}: nothing is changed here, queries are answered")
            handle = Handle.of(command.prepared_statement_handle).with_values(_batches(reader))
            result = message("DoPutPreparedStatementResult", prepared_statement_handle=handle.encoded())
            writer.write(pa.py_buffer(result.SerializeToString()))

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """
        Name the actions.
        """
        return list(_ACTIONS.items())

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """
        Prepare a statement, or forget it.
        """
        with self._place():
            if action.type not in _ACTIONS:
                raise RefusedStatementError(
                    f"the action {action.type[:100]} is not let through: there are {', '.join(_ACTIONS)}"
                )
            if action.type == _FORGET:
                return iter(())
            name, request = unpacked(action.body.to_pybytes())
            if name != "ActionCreatePreparedStatementRequest":
                raise BadRequestError(f"{name} is not what {_PREPARE} takes")
            return iter([self._prepared(context, request)])

    def _prepared(self, context: Any, request: Any) -> bytes:
        handle = _handle(request, _reading(context))
        schema = self._calls.run(context, lambda gone: self._door.prepared(handle, gone))
        parameters = pa.schema([(name, pa.string()) for name in handle.parameters])
        return packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=handle.encoded(),
            dataset_schema=_serialized(schema),
            parameter_schema=_serialized(parameters if parameters.names else None),
        )

    def _schema(self, context: Any, handle: Handle) -> pa.Schema:
        return self._calls.run(context, lambda gone: self._door.schema(handle, gone))

    def _answer(self, context: Any, ticket: bytes) -> pa.Table:
        with told():
            name, command = unpacked(ticket)
            if name in catalog.SCHEMAS:
                return self._calls.run(context, lambda gone: self._door.metadata(name, command, gone))
            handle = _query(name, command, _reading(context))
            table, about = self._calls.run(context, lambda gone: self._door.table(handle, gone))
            versions = ", ".join(f"{each.table}={each.version}" for each in about.versions)
            context.add_header("fluvial-versions", versions)
            return table

    @contextmanager
    def _place(self) -> Iterator[None]:
        leave = self._calls.enter()
        try:
            with told():
                yield
        finally:
            leave()


def _demand_free(host: str, port: int) -> None:
    """gRPC says of a port that is taken that something is wrong, and writes a page to stderr."""
    try:
        listen(host, port).close()
    except OSError as error:
        raise FlightPortError(f"{host}:{port}: {error.strerror or error}; choose another --flight-port") from error


def _command(descriptor: Any) -> tuple[str, Any]:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise BadRequestError("a flight is asked for by a command of Flight SQL, not by a path")
    return unpacked(descriptor.command)


def _batches(reader: Any) -> list[pa.RecordBatch]:
    """What is bound: one batch is enough, and a second one is too much."""
    try:
        chunks = list(islice(reader, 2))
    except pa.ArrowException as error:
        raise BadRequestError("the values that are bound cannot be read") from error
    return [each.data for each in chunks if each.data is not None]


def _serialized(schema: pa.Schema | None) -> bytes:
    return b"" if schema is None else bytes(schema.serialize())


def _reading(context: Any) -> Reading:
    return Reading.of(context.get_middleware(_HEADERS).headers)


def _handle(request: Any, reading: Reading) -> Handle:
    if request.HasField("transaction_id"):
        raise RefusedStatementError("there are no transactions here: queries are answered one by one")
    return Handle(statement=request.query, reading=reading).checked()


def _query(name: str, command: Any, reading: Reading) -> Handle:
    match name:
        case "CommandStatementQuery":
            return _handle(command, reading)
        case _ if name == _PREPARED:
            handle = Handle.of(command.prepared_statement_handle)
            return handle if reading == NEWEST else replace(handle, reading=reading)
        case "TicketStatementQuery":
            return Handle.of(command.statement_handle)
    raise RefusedStatementError(f"{name}: nothing but queries in SQL is answered here")
