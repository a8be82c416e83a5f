"""
As of when a statement reads its tables: what `?at=` and `?fresh=` say over HTTP, said by headers of a call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyarrow import flight

from fluvial.errors import FluvialError
from fluvial.query.versions import At
from fluvial.serve.errors import BadRequestError
from fluvial.serve.service import is_set

AT, FRESH, AT_LEAST = "fluvial-at", "fluvial-fresh", "fluvial-fresh-at-least"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    Offsets as of which tables are read, or whether with what the log holds, once it has the offsets `at_least`.
    """

    at: tuple[str, ...] = ()
    fresh: bool = False
    at_least: tuple[str, ...] = ()

    @classmethod
    def of(cls, headers: Mapping[str, Any]) -> "Reading":
        """
        Read the headers of a call, of which each may hold several offsets with commas between them.

        Raises :class:`BadRequestError`.
        """
        at, at_least = _offsets(headers, AT), _offsets(headers, AT_LEAST)
        fresh = is_set([str(each) for each in headers.get(FRESH, ())]) or bool(at_least)
        if at and fresh:
            raise BadRequestError(f"{AT} and {FRESH}: tables are read as of an offset or up to the newest, not both")
        return cls(at=at, fresh=fresh, at_least=at_least)

    @property
    def places(self) -> list[At]:
        """
        The offsets as of which tables are read. Raises :class:`BadRequestError`.
        """
        return _read(self.at, AT)

    @property
    def least(self) -> list[At]:
        """
        The offsets that are waited for. Raises :class:`BadRequestError`.
        """
        return _read(self.at_least, AT_LEAST)


NEWEST = Reading()
"""Tables at their newest versions."""


class Headers(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """
    Keeps the headers of a call for what answers it.
    """

    def start_call(self, info: Any, headers: Mapping[str, Any]) -> "GivenHeaders":
        """
        Give what keeps them.
        """
        return GivenHeaders({name.lower(): values for name, values in headers.items()})


class GivenHeaders(flight.ServerMiddleware):  # type: ignore[misc]
    """
    The headers of a call, by their names in lower case.
    """

    def __init__(self, headers: Mapping[str, Any]) -> None:
        super().__init__()
        self.headers = headers


def _offsets(headers: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(part.strip() for value in headers.get(name, ()) for part in str(value).split(",") if part.strip())


def _read(offsets: tuple[str, ...], name: str) -> list[At]:
    try:
        return list(At.of(offsets, name))
    except FluvialError as error:
        raise BadRequestError(str(error)) from error
