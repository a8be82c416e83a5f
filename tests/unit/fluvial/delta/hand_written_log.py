"""A Delta log of commits that are written by hand: no Spark runs."""

import json
from pathlib import Path
from typing import Any

from fluvial.delta.log import TableLog
from fluvial.delta.stamp import Stamp


class HandWrittenLog:
    """The log of a table in a folder; each commit adds a file."""

    def __init__(self, folder: Path) -> None:
        self.log = TableLog(None, str(folder))
        self.versions = 0
        self._commits = folder / "_delta_log"

    def commit(self, stamp: Stamp | None, operation: str = "WRITE") -> None:
        """Write a commit of ours, or one of others, which has no stamp."""
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": operation}}, {"add": {"path": "x"}}]
        if stamp is not None:
            actions[0]["commitInfo"]["userMetadata"] = stamp.as_json()
            actions.append({"txn": {"appId": f"fluvial/{stamp.topic}", "version": stamp.batch}})
        self._commits.mkdir(parents=True, exist_ok=True)
        self._file(self.versions).write_text("\n".join(map(json.dumps, actions)))
        self.versions += 1

    def clean(self, below: int) -> None:
        """Remove the commits below a version, as Delta does once a checkpoint stands for them."""
        self._file(below).with_suffix(".checkpoint.parquet").touch()
        for version in range(below):
            self._file(version).unlink(missing_ok=True)

    def _file(self, version: int) -> Path:
        return self._commits / f"{version:020d}.json"
