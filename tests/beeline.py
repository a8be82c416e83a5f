"""Spark's own beeline, as a client of JDBC."""

import csv
import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark

from fluvial.spark.java import require_java

JARS = Path(pyspark.__file__).parent / "jars"
PATIENCE_SECONDS = 120
# Without a terminal it writes its prompt before an answer.
_PROMPT = re.compile(r"^(?:\d+: jdbc:\S+?|[ .]+)> ", re.MULTILINE)


def beeline(jdbc: str, *statements: str, options: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    """Run the client of Spark's distribution."""
    java = str(require_java().program)
    options = ["-u", jdbc, "--outputformat=csv2", "--silent=true", *options]
    asked = [word for statement in statements for word in ("-e", statement)]
    return subprocess.run(
        [java, "-Xmx256m", "-cp", f"{JARS}/*", "org.apache.hive.beeline.BeeLine", *options, *asked],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def rows(jdbc: str, statement: str) -> list[dict[str, str]]:
    """What beeline is answered, each value as text."""
    done = beeline(jdbc, statement)
    assert done.returncode == 0, done.stderr[-3000:]
    return list(csv.DictReader(io.StringIO(_PROMPT.sub("", done.stdout))))
