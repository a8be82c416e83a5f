"""
Records of versions that a contract got while a stream runs: their schemas are taken from the registry where they are
read, and their values become ones of the schema that the stream reads as.

The plan of a running query is fixed, and with it the schemas that it decodes. What it does not know goes through a
Python worker: decoded with the writer's schema, resolved and encoded again. Known versions stay in the JVM.
"""

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluvial.errors import FluvialError
from fluvial.registry.endpoint import RegistryEndpoint

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from fluvial.spark.avro import Contract

HEADER_BYTES = 5
_UNKNOWN_S = 5.0
"""An id that the subject did not have is asked for again after so long: a record may be ahead of a registry's node."""
_ASKED_S = 10.0
"""So often a running stream asks for newer versions."""
_workers: dict[tuple[str, str, str], "_Worker"] = {}


@dataclass(frozen=True, kw_only=True)
class NewerSchemas:
    """
    The schemas of a subject that come while a stream runs, which reads as `reader`. It is sent to Spark's workers.
    """

    endpoint: RegistryEndpoint
    subject: str
    reader: str

    def translated(self, value: "Column") -> "Column":
        """
        The Avro body, by `reader`, of each framed value; null for null and for what is of no version of the subject.

        A registry that does not answer fails the task.
        """
        from pyspark.sql.functions import pandas_udf

        def translate(values: Any) -> Any:
            worker = worker_of(self)
            return values.map(lambda each: None if each is None else worker.translate(bytes(each)))

        # pandas_udf reads the hints of a function, and those of this module are texts.
        import pandas as pd

        translate.__annotations__ = {"values": pd.Series, "return": pd.Series}
        udf: Any = pandas_udf(translate, "binary")
        column: Column = udf(value)
        return column


def worker_of(newer: NewerSchemas) -> "_Worker":
    """What this process knows of the subject."""
    key = (newer.endpoint.url, newer.subject, newer.reader)
    if key not in _workers:
        _workers[key] = _Worker(newer)
    return _workers[key]


class _Worker:
    """Translates in one process, and keeps the schemas that it was given."""

    def __init__(self, newer: NewerSchemas) -> None:
        import fastavro

        self._newer = newer
        self._reader = fastavro.parse_schema(json.loads(newer.reader))
        self._writers: dict[int, Any] = {}
        self._unknown: dict[int, float] = {}

    def translate(self, framed: bytes) -> bytes | None:
        """The body of a framed value as one of the reader's schema; None where it cannot be one."""
        import fastavro

        writer = self._writer(int.from_bytes(framed[1:HEADER_BYTES], "big"))
        if writer is None:
            return None
        body, again = io.BytesIO(framed[HEADER_BYTES:]), io.BytesIO()
        try:
            value = fastavro.schemaless_reader(body, writer, self._reader)
            fastavro.schemaless_writer(again, self._reader, value)
        except Exception:
            # Bytes of any kind make the library raise anything: the record is one that does not decode.
            return None
        return again.getvalue()

    def _writer(self, schema_id: int) -> Any:
        if schema_id in self._writers:
            return self._writers[schema_id]
        if time.monotonic() - self._unknown.get(schema_id, float("-inf")) < _UNKNOWN_S:
            return None
        import fastavro

        with self._newer.endpoint.client() as registry:
            versions = registry.versions_of_subject(self._newer.subject)
        self._writers = {each.id: fastavro.parse_schema(json.loads(each.schema)) for each in versions}
        if schema_id not in self._writers:
            if len(self._unknown) > 1000:  # ids made up by whoever sent them
                self._unknown.clear()
            self._unknown[schema_id] = time.monotonic()
        return self._writers.get(schema_id)


def announce_newer(
    spark: "SparkSession", contract: "Contract", endpoint: RegistryEndpoint, say: Callable[[str], None]
) -> None:
    """
    Have `say` called, while queries of the session run, with each newer version of a contract that adds columns.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    watch = NewColumns(contract, endpoint, say)

    class Listener(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            watch.look()

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            watch.look()

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    spark.streams.addListener(Listener())


class NewColumns:
    """
    Looks for versions of a contract that came after it was read.
    """

    def __init__(
        self,
        contract: "Contract",
        endpoint: RegistryEndpoint,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contract, self._endpoint, self._say, self._clock = contract, endpoint, say, clock
        self._known = 0 if contract.point is None else contract.point.newest
        self._asked = float("-inf")

    def look(self) -> None:
        """
        Ask the registry, unless that was done just now. One that does not answer is asked again later.
        """
        if self._clock() - self._asked < _ASKED_S:
            return
        self._asked = self._clock()
        try:
            with self._endpoint.client() as registry:
                versions = registry.versions_of_subject(self._contract.subject)
        except FluvialError:
            return
        for each in versions:
            if each.version > self._known:
                self._known = each.version
                self._tell(each.version, json.loads(each.schema))

    def _tell(self, version: int, schema: Mapping[str, Any]) -> None:
        names = [field["name"] for field in schema.get("fields", ()) if self._is_new(field)]
        if names:
            self._say(
                f"{self._contract.subject} has version {version} with {', '.join(names)}: running queries read its "
                "records into the columns that they have; start them again to have these too"
            )

    def _is_new(self, field: Mapping[str, Any]) -> bool:
        known = {*self._contract.field_names, *self._contract.renamed}
        return not known & {field["name"], *field.get("aliases", ())}
