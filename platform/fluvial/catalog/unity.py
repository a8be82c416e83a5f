"""
Tables in Unity Catalog, by its REST API.

An entry has no update there: one whose columns are no longer the table's is dropped and made again, which leaves the
table's files alone and takes the rights that were granted on this very entry. What is granted on its schema stays.
"""

import json
from typing import Any
from urllib.parse import quote, unquote

from fluvial.catalog.entry import Entry, EntryColumn
from fluvial.catalog.errors import CatalogError
from fluvial.catalog.outcome import Outcome
from fluvial.catalog.rest import Answer, Rest, words_of
from fluvial.catalog.settings import NAME_DEFAULT, CatalogSettings

API = "/api/2.1/unity-catalog"
ATTEMPTS_MAX = 3

_KINDS = {
    "boolean": "BOOLEAN",
    "byte": "BYTE",
    "short": "SHORT",
    "integer": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "string": "STRING",
    "binary": "BINARY",
    "variant": "VARIANT",
    "void": "NULL",
    "array": "ARRAY",
    "struct": "STRUCT",
    "map": "MAP",
    "udt": "USER_DEFINED_TYPE",
}


class UnityCatalog:
    """The catalog that `settings` name within a Unity Catalog; it is made with the first table, if it is not there."""

    needs_spark = False

    def __init__(self, settings: CatalogSettings) -> None:
        assert settings.unity is not None, "the settings name Unity Catalog"
        self.catalog = settings.name or NAME_DEFAULT
        self._title = str(settings)
        self._has_token = settings.token is not None
        self._rest = Rest(settings.unity + API, title=self._title, token=settings.token, properties=settings.properties)
        self._schemas: set[str] = set()

    def register(self, entry: Entry) -> Outcome:
        """Have the catalog know the table as it is. Raises CatalogError."""
        wanted = self._document(entry)
        for _ in range(ATTEMPTS_MAX):
            found = self._found(f"/tables/{self._path(entry.database, entry.name)}")
            if found is None:
                self._require_schema(entry.database)
                if self._made("/tables", wanted):
                    return Outcome.MADE
            elif _same(found, wanted):
                return Outcome.SAME
            else:
                self._require_ours(found, wanted)
                if self._replaced(found, wanted):
                    return Outcome.CHANGED
        raise CatalogError(f"{self._title}: another program registers {entry.table} there, again and again")

    def _document(self, entry: Entry) -> dict[str, Any]:
        return {
            "name": entry.name,
            "catalog_name": self.catalog,
            "schema_name": entry.database,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            # The name under which Unity Catalog gives credentials for S3.
            "storage_location": "s3" + entry.location[3:] if entry.location.startswith("s3a:") else entry.location,
            "columns": [self._column(number, each) for number, each in enumerate(entry.columns)],
        }

    def _column(self, position: int, column: EntryColumn) -> dict[str, Any]:
        precision, scale = column.decimal or (None, None)
        field = {"name": column.name, "type": column.kind, "nullable": column.nullable, "metadata": {}}
        given = {
            "name": column.name,
            "type_text": column.sql_type,
            "type_json": json.dumps(field, ensure_ascii=False),
            "type_name": self._kind(column),
            "type_precision": precision,
            "type_scale": scale,
            "position": position,
            "nullable": column.nullable,
            "comment": column.comment,
            "partition_index": column.partition_index,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _kind(self, column: EntryColumn) -> str:
        if column.decimal is not None:
            return "DECIMAL"
        word = column.kind if isinstance(column.kind, str) else column.kind["type"]
        if word not in _KINDS:
            raise CatalogError(f"{self._title}: knows no columns of type {column.sql_type}, as {column.name} is")
        return _KINDS[word]

    def _path(self, *names: str) -> str:
        return ".".join(quote(each, safe="") for each in (self.catalog, *names))

    def _require_schema(self, schema: str) -> None:
        """Make what the tables of a database lie in, if it is not there."""
        if schema in self._schemas:
            return
        if self._found(f"/schemas/{self._path(schema)}") is None:
            if self._found(f"/catalogs/{self._path()}") is None:
                self._made("/catalogs", {"name": self.catalog, "comment": "Tables of fluvial"})
            self._made("/schemas", {"name": schema, "catalog_name": self.catalog})
        self._schemas.add(schema)

    def _require_ours(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        """A table that lies elsewhere is somebody's, and dropping one that Unity Catalog manages deletes its rows."""
        if found.get("table_type") == "EXTERNAL" and _place(found) == _place(wanted):
            return
        name = f"{self.catalog}.{wanted['schema_name']}.{wanted['name']}"
        place = words_of(f"{found.get('table_type')} at {found.get('storage_location')}")
        raise CatalogError(
            f"{self._title}: {name} is another table there ({place}); drop it, or name another catalog as `name` in "
            "[catalog]"
        )

    def _replaced(self, found: dict[str, Any], wanted: dict[str, Any]) -> bool:
        path = f"/tables/{self._path(wanted['schema_name'], wanted['name'])}"
        answer = self._rest.call("DELETE", path)
        if answer.status == 404:
            return False
        if not answer.is_success:
            raise self._refusal("DELETE", path, answer)
        try:
            return self._made("/tables", wanted)
        except CatalogError as error:
            if not error.is_away:
                # Its former columns are better than none.
                self._made("/tables", {name: found[name] for name in wanted if found.get(name) is not None})
            raise

    def _found(self, path: str) -> dict[str, Any] | None:
        answer = self._rest.call("GET", path)
        if answer.status == 404 and _code(answer) is not None:
            return None
        if not answer.is_success or answer.document is None:
            raise self._refusal("GET", path, answer)
        return answer.document

    def _made(self, path: str, document: dict[str, Any]) -> bool:
        """Make something; whether it was not there yet."""
        answer = self._rest.call("POST", path, document)
        if answer.is_success and answer.document is not None:
            return True
        if (_code(answer) or "").endswith("ALREADY_EXISTS"):
            return False
        raise self._refusal("POST", path, answer)

    def _refusal(self, method: str, path: str, answer: Answer) -> CatalogError:
        if answer.status == 401:
            repair = "FLUVIAL_CATALOG_TOKEN, or token in [catalog], is to be one that it knows"
            asked = "does not take the token" if self._has_token else "asks for a token"
            return CatalogError(f"{self._title} {asked}: {repair}", is_away=True)
        if _code(answer) is None:
            said = f"{method} {path} was answered by HTTP {answer.status}"
            return CatalogError(f"{self._title} does not answer as Unity Catalog does: {said}", is_away=True)
        assert answer.document is not None, "it has a code"
        said = words_of(answer.document.get("message") or _code(answer))
        return CatalogError(f"{self._title} refuses {method} {path}: {said}", is_away=answer.status >= 500)


def _code(answer: Answer) -> str | None:
    """The word by which Unity Catalog says why not."""
    code = None if answer.document is None else answer.document.get("error_code")
    return code if isinstance(code, str) else None


def _same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    kinds = ("table_type", "data_source_format")
    return (
        all(found.get(kind) == wanted[kind] for kind in kinds)
        and _place(found) == _place(wanted)
        and _columns(found) == _columns(wanted)
    )


def _place(document: dict[str, Any]) -> str:
    place = unquote(str(document.get("storage_location"))).rstrip("/")
    return "file:/" + place[5:].lstrip("/") if place.startswith("file:") else place


def _columns(document: dict[str, Any]) -> list[tuple[Any, ...]] | None:
    columns = document.get("columns")
    if not isinstance(columns, list) or not all(isinstance(each, dict) for each in columns):
        return None
    told = ("position", "name", "type_text", "nullable", "partition_index")
    found = [(*(each.get(name) for name in told), each.get("comment") or None) for each in columns]
    return sorted(found, key=lambda each: each[0] if isinstance(each[0], int) else -1)
