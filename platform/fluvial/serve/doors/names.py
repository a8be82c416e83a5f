"""
The names of a warehouse's tables, told to an engine that asks a catalog for them: Iceberg's REST protocol, read only.

Each table is a view of its columns but the internal ones, made when it is asked for: a table is known as soon as it is
there, and has its newest version. Only what Sail asks is answered; whatever would change the catalog is refused.
"""

import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fluvial.delta.snapshot import read_snapshot
from fluvial.errors import FluvialError
from fluvial.query.references import INTERNAL_COLUMNS, quoted
from fluvial.spark.warehouse import DATABASES, Warehouse

DATABASE_DEFAULT = "default"
"""Where a session is before it says USE; it holds nothing."""

_PRIMITIVES = {
    "boolean": "boolean",
    "byte": "int",
    "short": "int",
    "integer": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}


class NoSuchNameError(LookupError):
    """
    A name that the warehouse does not have.
    """


class Names:
    """
    Answers of the catalog, by the parts of the path that is asked for.
    """

    def __init__(self, location: str) -> None:
        self._warehouse = Warehouse.at(location)

    def answer(self, parts: list[str]) -> Mapping[str, Any]:
        """
        The answer to GET of a path. Raises :class:`NoSuchNameError`.
        """
        match parts:
            case ["v1", "config"]:
                return {"defaults": {}, "overrides": {}}
            case ["v1", "namespaces"]:
                return {"namespaces": [[name] for name in (DATABASE_DEFAULT, *DATABASES)]}
            case ["v1", "namespaces", database]:
                return {"namespace": [_known(database)], "properties": {}}
            case ["v1", "namespaces", database, "tables"]:
                _known(database)
                return {"identifiers": []}
            case ["v1", "namespaces", database, "views"]:
                return {"identifiers": self._listed(_known(database))}
            case ["v1", "namespaces", database, "views", name]:
                return self._view(f"{_known(database)}.{name}")
        raise NoSuchNameError(f"nothing is known of {'/'.join(parts)}")

    def _listed(self, database: str) -> list[dict[str, Any]]:
        tables = (table.partition(".") for table in self._warehouse.tables())
        return [{"namespace": [of], "name": name} for of, _, name in tables if of == database]

    def _view(self, table: str) -> Mapping[str, Any]:
        # The name comes from outside: only what is listed becomes a path.
        if table not in self._warehouse.tables():
            raise NoSuchNameError(f"no table {table}")
        folder = self._warehouse.local
        assert folder is not None, "the warehouse is on this machine"
        path = folder.joinpath(*table.split("."))
        snapshot = read_snapshot(str(path))
        if snapshot is None:
            raise NoSuchNameError(f"no table {table}")
        fields = [each for each in json.loads(snapshot.schema)["fields"] if each["name"] not in INTERNAL_COLUMNS]
        return _loaded(path, fields)


def _loaded(path: Path, fields: list[dict[str, Any]]) -> Mapping[str, Any]:
    """A view over the table, as the protocol's LoadViewResult."""
    columns = ", ".join(quoted(each["name"]) for each in fields)
    sql = f"SELECT {columns} FROM delta.{quoted(str(path))}"
    version = {
        "version-id": 1,
        "timestamp-ms": 0,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": [DATABASE_DEFAULT],
    }
    metadata = {
        "view-uuid": "00000000-0000-0000-0000-000000000000",
        "format-version": 1,
        "location": str(path),
        "current-version-id": 1,
        "versions": [version],
        "version-log": [{"version-id": 1, "timestamp-ms": 0}],
        "schemas": [_Schema().of(fields)],
        "properties": {},
    }
    return {"metadata-location": str(path), "metadata": metadata}


class _Schema:
    """Columns in Iceberg's types, in which each field of each level has a number."""

    def __init__(self) -> None:
        self._number = 0

    def of(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        """The schema of a table's columns."""
        return {"type": "struct", "schema-id": 0, "fields": [self._field(each) for each in fields]}

    def _field(self, field: dict[str, Any]) -> dict[str, Any]:
        number = self._next()
        return {
            "id": number, "name": field["name"], "required": not field["nullable"], "type": self._type(field["type"])
        }  # fmt: skip

    def _type(self, kind: Any) -> Any:
        if isinstance(kind, str):
            return _PRIMITIVES.get(kind, kind)
        if kind["type"] == "struct":
            return {"type": "struct", "fields": [self._field(each) for each in kind["fields"]]}
        if kind["type"] == "array":
            return {
                "type": "list", "element-id": self._next(), "element": self._type(kind["elementType"]),
                "element-required": not kind["containsNull"],
            }  # fmt: skip
        return {
            "type": "map", "key-id": self._next(), "key": self._type(kind["keyType"]), "value-id": self._next(),
            "value": self._type(kind["valueType"]), "value-required": not kind["valueContainsNull"],
        }  # fmt: skip

    def _next(self) -> int:
        self._number += 1
        return self._number


def _known(database: str) -> str:
    if database not in (DATABASE_DEFAULT, *DATABASES):
        raise NoSuchNameError(f"no database {database}")
    return database


class NamesServer(ThreadingHTTPServer):
    """
    The names over HTTP on a port of 127.0.0.1, once it is told to serve.
    """

    daemon_threads = True

    def __init__(self, names: Names) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names = names

    @property
    def url(self) -> str:
        """
        What the engine asks.
        """
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: NamesServer

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        try:
            self._send(200, self.server.names.answer(parts))
        except NoSuchNameError as error:
            self._refuse(404, "NoSuchTableException", str(error))
        except (FluvialError, OSError) as error:
            self._refuse(500, "ServiceFailureException", str(error))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": kind, "code": status}})

    def _send(self, status: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
