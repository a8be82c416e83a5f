"""
What `fluvial serve` answers, apart from HTTP: which table, version, key and columns are meant, and the rows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluvial.delta.errors import TableError
from fluvial.delta.log import TableLog
from fluvial.errors import FluvialError
from fluvial.query.json_text import json_text
from fluvial.query.versions import At, NoSuchOffsetError, resolve
from fluvial.serve.errors import (
    BadRequestError,
    NoRowError,
    NoVersionError,
    ServeError,
    TooLargeError,
    UnreadableError,
)
from fluvial.serve.follower import Follower
from fluvial.serve.table import Row, ServedTable, View

_IN_LOOP_MAX = 16
"""More rows than these are looked up in a thread: one costs some tens of microseconds."""

_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    What one client can take: keys in a batch, bytes of a request and an answer, seconds of waiting, and watchers.
    """

    keys: int = 1_000
    request_bytes: int = 1 << 20
    answer_bytes: int = 16 << 20
    wait_seconds: float = 60.0
    watchers: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """
    Which version is meant, and which columns: None for all. `wait_version` is waited for, `wait` seconds at most.

    With `fresh` rows are those of the newest version and of what the log holds behind it, once that has the offsets
    `fresh_at_least`.
    """

    columns: tuple[str, ...] | None = None
    version: int | None = None
    at: tuple[str, ...] = ()
    wait_version: int | None = None
    wait: float | None = None
    fresh: bool = False
    fresh_at_least: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Sequence[str]]) -> "Asked":
        """
        Read the parameters of a URL. Raises :class:`BadRequestError`.
        """
        unknown = next((name for name in given if name not in _PARAMETERS), None)
        if unknown is not None:
            raise BadRequestError(f"?{unknown[:100]}= is not known: there are {', '.join(_PARAMETERS)}")
        for name in ("version", "wait_version", "wait"):
            if len(given.get(name, ())) > 1:
                raise BadRequestError(f"?{name}= is given twice")
        columns = [name for each in given.get("columns", ()) for name in each.split(",") if name]
        asked = cls(
            columns=tuple(columns) if "columns" in given else None,
            version=_number("version", given),
            at=tuple(given.get("at", ())),
            wait_version=_number("wait_version", given),
            wait=_number("wait", given),
            fresh=is_set(given.get("fresh", ())) or "fresh_at_least" in given,
            fresh_at_least=tuple(given.get("fresh_at_least", ())),
        )
        return asked.checked()

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> "Asked":
        """
        Read the fields of a body. Raises :class:`BadRequestError`.
        """
        unknown = next((name for name in body if name not in (*_PARAMETERS, "keys")), None)
        if unknown is not None:
            raise BadRequestError(f"{unknown[:100]!r} is not known: there are keys, {', '.join(_PARAMETERS)}")
        columns, fresh = body.get("columns"), body.get("fresh", False)
        if columns is not None and not _is_texts(columns):
            raise BadRequestError("columns is a list of names")
        for name in ("at", "fresh_at_least"):
            if not _is_texts(body.get(name, [])):
                raise BadRequestError(f'{name} is a list such as ["orders:0=1234"]')
        if not isinstance(fresh, bool):
            raise BadRequestError("fresh is true or false")
        for name in ("version", "wait_version", "wait"):
            value = body.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise BadRequestError(f"{name} is a whole number")
        asked = cls(
            columns=None if columns is None else tuple(columns),
            version=body.get("version"),
            at=tuple(body.get("at", [])),
            wait_version=body.get("wait_version"),
            wait=body.get("wait"),
            fresh=fresh or "fresh_at_least" in body,
            fresh_at_least=tuple(body.get("fresh_at_least", [])),
        )
        return asked.checked()

    def checked(self) -> "Asked":
        """
        This, if its parts go together. Raises :class:`BadRequestError`.
        """
        if (self.version is not None) + bool(self.at) + (self.wait_version is not None) + self.fresh > 1:
            raise BadRequestError("version, at, wait_version and fresh each say which version is meant: give one")
        if self.wait is not None and self.wait_version is None:
            raise BadRequestError("wait says how long wait_version is waited for: give both")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """
    The version of a table that is meant.

    Where `made` is set its rows are not those that are asked for, but what these are made from; `between` says why they
    stand in no version.
    """

    view: View
    made: bool = False
    between: NoVersionError | None = None


_PARAMETERS = ("columns", "version", "at", "wait_version", "wait", "fresh", "fresh_at_least")


def is_set(values: Sequence[str]) -> bool:
    """
    Whether a switch among the parameters of a URL is on. Raises :class:`BadRequestError`.
    """
    if len(values) > 1 or not set(values) <= {"0", "1", "true", "false"}:
        raise BadRequestError("?fresh= is 1 or 0")
    return bool({"1", "true"}.intersection(values))


class Service:
    """
    Answers about the tables of a warehouse, in one event loop.
    """

    def __init__(self, follower: Follower, limits: Limits) -> None:
        self.follower = follower
        self.limits = limits
        self.watchers = 0

    @property
    def names(self) -> list[str]:
        """
        The names of the tables.
        """
        return self.follower.warehouse.names()

    def table(self, name: str) -> ServedTable:
        """
        A table by its name. Raises :class:`~fluvial.serve.errors.NoTableError`.
        """
        return self.follower.warehouse.table(name)

    async def meant(self, table: ServedTable, asked: Asked) -> Meant:
        """
        The version of a table that is meant. Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        try:
            if asked.wait_version is not None:
                wait = self.limits.wait_seconds if asked.wait is None else min(asked.wait, self.limits.wait_seconds)
                view = await self.follower.wait(table, asked.wait_version, wait)
                if view.version < asked.wait_version:
                    raise NoVersionError(
                        f"{table.name} has no version {asked.wait_version} yet: after {wait:g} s the newest is "
                        f"{view.version}"
                    )
                return Meant(view=view)
            view = await self.follower.held(table)
            if asked.version is None and not asked.at:
                return Meant(view=view, made=asked.fresh)
            return await self.follower.in_thread(lambda: _older(table, asked))
        except ServeError:
            raise
        except (FluvialError, OSError) as error:
            raise UnreadableError(str(error)) from error

    async def view(self, table: ServedTable, asked: Asked) -> View:
        """
        As :meth:`meant`, where what is asked for has to stand in a version.
        """
        meant = await self.meant(table, asked)
        if meant.between is not None:
            raise meant.between
        return meant.view

    async def row(self, view: View, key: Sequence[Any], columns: Sequence[str] | None) -> bytes:
        """
        A row as a JSON object. Raises :class:`NoRowError` and what looking up raises.
        """
        row = _read(lambda: view.get(key, columns))
        if row is None:
            raise no_row(view, key, f"at version {view.version}")
        return self.shown(view, row)

    def shown(self, view: View, row: Row) -> bytes:
        """
        A row of a table as a JSON object. Raises :class:`TooLargeError`.
        """
        return self._bounded(_json(row, view.types))

    async def rows(self, view: View, keys: Sequence[Any], columns: Sequence[str] | None) -> bytes:
        """
        Rows in the order of keys as JSON has them, null where there is none, with their one version.

        Raises :class:`~fluvial.serve.errors.ServeError`.
        """
        wanted = self.keys_of(view, keys)
        view.columns(columns)

        def read() -> bytes:
            rows = (_read(lambda key=key: view.get(key, columns)) for key in wanted)
            return self.listed(view, rows, view.version)

        return read() if len(keys) <= _IN_LOOP_MAX else await self.follower.in_thread(read)

    def keys_of(self, view: View, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
        """
        The keys that a batch names. Raises :class:`TooLargeError` for too many, and :class:`BadKeyError`.
        """
        if len(keys) > self.limits.keys:
            raise TooLargeError(f"{len(keys)} keys are asked for at once; no more than {self.limits.keys} are answered")
        return [view.key.of_value(key) for key in keys]

    def listed(self, view: View, rows: Iterable[Row | None], version: int) -> bytes:
        """
        Rows of a table at a version as JSON, null for None. Raises :class:`TooLargeError`.
        """
        parts, size = [], 0
        for row in rows:
            parts.append("null" if row is None else _json(row, view.types))
            size += len(parts[-1])
            if size > self.limits.answer_bytes:
                break
        return self._bounded(
            f'{{"table": {json.dumps(view.name)}, "version": {version}, "rows": [{", ".join(parts)}]}}'
        )

    def described(self, view: View) -> bytes:
        """
        What a table is: its version, columns, key, and number of rows where it says so, as JSON.
        """
        return json.dumps(
            {
                "table": view.name,
                "version": view.version,
                "rows": view.rows,
                "key": list(view.key.columns),
                "columns": [{"name": name, "type": view.types[name]} for name in view.columns()],
            },
            ensure_ascii=False,
        ).encode()

    def _bounded(self, text: str) -> bytes:
        body = text.encode()
        if len(body) > self.limits.answer_bytes:
            raise TooLargeError(
                f"the answer has more than {self.limits.answer_bytes} bytes: ask for fewer keys or name columns"
            )
        return body


def no_row(view: View, key: Sequence[Any], when: str) -> NoRowError:
    """
    What is said where no row has a key.
    """
    shown = ", ".join(f"{name} = {part}" for name, part in zip(view.key.columns, key, strict=True))
    return NoRowError(f"no row of {view.name} has {shown[:300]} {when}")


def _read(read: Any) -> Row | None:
    try:
        found: Row | None = read()
    except ServeError:
        raise
    except (TableError, OSError) as error:
        raise UnreadableError(str(error)) from error
    return found


def _json(row: Row, types: Mapping[str, str]) -> str:
    fields = (f"{json.dumps(name, ensure_ascii=False)}: {json_text(row[name], types[name])}" for name in row)
    return f"{{{', '.join(fields)}}}"


def _older(table: ServedTable, asked: Asked) -> Meant:
    if asked.version is not None:
        return Meant(view=table.at(asked.version))
    try:
        places = At.of(asked.at)
    except FluvialError as error:
        raise BadRequestError(str(error)) from error
    try:
        return Meant(view=table.at(resolve(TableLog(None, table.path), table.name, places=places).version))
    except NoSuchOffsetError as error:
        between = NoVersionError(str(error))
        if error.below is None and not error.made_of:
            raise between from error
        view = table.newest() if error.below is None else table.at(error.below.version)
        return Meant(view=view, made=True, between=between)


def _number(name: str, given: Mapping[str, Sequence[str]]) -> int | None:
    if name not in given:
        return None
    text = given[name][0]
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise BadRequestError(f"?{name}= is a whole number, not {text[:50]!r}")
    return int(text)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
