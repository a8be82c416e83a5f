"""
A driver that ends in the middle of a run of a streaming query; as a program, it kills itself and its JVM there.

    python tests/spark/killed_stream.py '{"step": "sink committed", "mode": "update", …}'

"rows made": the batch is computed, and the sink has not written it. "sink committed": the table has the batch, and the
checkpoint does not say so yet. "noted": the checkpoint has all batches, and the run's own last commit is not made.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from killed_driver import kill, settings_of

from fluvial.tables import Pipeline, streaming
from fluvial.tables.drive import runner
from fluvial.tables.refresh import stream_run, update_sink

VIEWS = "history.views"
TABLE = "marts.killed_stream"


class Counting:
    """Counts the views of a page over all batches, and gives the count, or what a batch adds to it."""

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def init(self, handle: Any) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:
        import pandas as pd

        before = self._seen.get()
        came = sum(len(each) for each in rows)
        now = came + (0 if before is None else before[0])
        self._seen.update((now,))
        yield pd.DataFrame({"page": [key[0]], "views": [now if self._whole else came]})

    def close(self) -> None:
        pass


def counted(views: Any, mode: str) -> Any:
    """The views of each page by a processor of Python's, which keeps its own state."""
    from pyspark.sql.streaming import StatefulProcessor

    processor = type("Views", (Counting, StatefulProcessor), {})(whole=mode == "update")
    grouped = views.groupBy("page")
    return grouped.transformWithStateInPandas(processor, "page string, views long", mode.title(), "None")


def query_of(mode: str) -> Pipeline:
    """A query of that output mode, in whose table the views of a page add up to all there were."""
    if mode == "complete":
        declare = streaming(name="killed_stream", inputs=[VIEWS], output_mode="complete", version="1")
        return cast("Pipeline", declare(lambda views: views.groupBy("page").count().toDF("page", "views")))
    key = "page" if mode == "update" else ()
    declare = streaming(name="killed_stream", inputs=[VIEWS], output_mode=cast("Any", mode), key=key, version="1")
    return cast("Pipeline", declare(lambda views: counted(views, mode)))


@contextmanager
def ending_at(step: str, mode: str, table: Path) -> Iterator[None]:
    """Have a run of the query kill this process at a step."""

    def after(*arguments: Any, **keywords: Any) -> None:
        real(*arguments, **keywords)
        kill()

    match step:
        case "sink committed" if mode != "update":
            _watch(table / "_delta_log")
            yield
        case "sink committed":
            real = update_sink.commit_once
            with patch.object(update_sink, "commit_once", after):
                yield
        case "rows made":
            with patch.object(update_sink, "commit_once", kill):
                yield
        case "noted":
            with patch.object(stream_run.StreamRun, "_committed", kill):
                yield
        case _:
            raise ValueError(step)


def _watch(log: Path) -> None:
    """Kill this process as soon as the log has a further commit: Delta's own sink is nothing that Python sees."""
    before = len([*log.glob("*.json")])

    def watch() -> None:
        while len([*log.glob("*.json")]) == before:
            pass
        kill()

    threading.Thread(target=watch, daemon=True).start()


def main(order: dict[str, str]) -> None:
    from fluvial.spark.session import build_session

    settings = settings_of(order)
    spark = build_session(settings, "fluvial killed stream")
    with ending_at(order["step"], order["mode"], Path(settings.warehouse, TABLE.replace(".", "/"))):
        runner.materialize(query_of(order["mode"]), settings, spark)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
