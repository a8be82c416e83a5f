"""JSON over HTTP, within bounds: whatever answers at an address, asking it takes so long and so much memory at most."""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.catalog.errors import CatalogError
from fluvial.kafka.tls import tls_context

if TYPE_CHECKING:
    import httpx

    from fluvial.properties import Properties

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Of one call in all, from looking up the host's name to the last byte."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
WORDS_MAX = 200
"""The characters of what a server says that a message shows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The status of an answer and the JSON object in it, None where it was none."""

    status: int
    document: dict[str, Any] | None

    @property
    def is_success(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300


class Rest:
    """
    A server at `url`, `title` in messages. It is asked on a thread of its own, where no event loop may run already.

    `call` raises CatalogError where nothing answers in time, or with too much.
    """

    def __init__(self, url: str, *, title: str, token: str | None, properties: "Properties") -> None:
        self._url = url
        self._title = title
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._verify = tls_context(properties) if url.lower().startswith("https:") else False
        self._seconds = ANSWER_SECONDS

    def call(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Answer:
        """Ask, and wait for the answer."""
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, self._bounded(method, path, content)).result()

    async def _bounded(self, method: str, path: str, content: Mapping[str, Any] | None) -> Answer:
        import httpx

        try:
            async with asyncio.timeout(self._seconds):
                return await self._asked(method, path, content)
        except TimeoutError:
            raise self._away(f"no whole answer within {self._seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._away(f"{words_of(error) or type(error).__name__}") from error

    async def _asked(self, method: str, path: str, content: Mapping[str, Any] | None) -> Answer:
        import httpx

        timeout = httpx.Timeout(self._seconds, connect=CONNECT_SECONDS)
        async with (
            httpx.AsyncClient(headers=self._headers, verify=self._verify, timeout=timeout) as http,
            http.stream(method, self._url + path, json=content) as response,
        ):
            return Answer(response.status_code, _document(await self._body(response)))

    async def _body(self, response: "httpx.Response") -> bytes:
        body = bytearray()
        # As it came: what is compressed in spite of the header is no JSON.
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise self._away(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        return bytes(body)

    def _away(self, reason: str) -> CatalogError:
        return CatalogError(f"{self._title} does not answer ({reason})", is_away=True)


def words_of(said: object) -> str:
    """Return what a server has said as a part of one line."""
    text = " ".join("".join(each if each.isprintable() else " " for each in str(said)[: 4 * WORDS_MAX]).split())
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]} …"


def _document(body: bytes) -> dict[str, Any] | None:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
