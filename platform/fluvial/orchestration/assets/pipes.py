"""
Assets whose Spark driver runs in a process of its own, started by `spark-submit`.

The driver may then have a machine's memory for itself, or be put on the cluster, and Dagster's code server needs
neither. What comes back through Dagster Pipes is what a run in this process would have said.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from fluvial.config import Settings, environment_of
from fluvial.errors import FluvialError

if TYPE_CHECKING:
    from fluvial.tables.plan.result import RunResult

DRIVER = Path(__file__).with_name("pipes_driver.py")


class SubmitError(FluvialError):
    """The driver did not get as far as a result; its own words are in the run's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """
    How the driver is started: the words of `spark-submit`, and variables for its environment. PySpark brings one along.

    The settings of the session go with it. With `--deploy-mode cluster` the driver cannot be heard through a file of
    this machine: leave it at the client's.
    """

    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the driver has told: the result, and the table's columns and their lineage as plain values."""

    result: "RunResult"
    columns: tuple[Mapping[str, Any], ...]
    lineage: Mapping[str, list[tuple[str, str]]]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Told":
        """Read back what `Told.as_message` made; JSON has made texts of the partitions' numbers."""
        from fluvial.tables.plan.result import RunResult

        kept = dict(message["result"])
        kept["offsets"] = {int(partition): (span[0], span[1]) for partition, span in kept["offsets"].items()}
        return cls(
            result=RunResult(**kept),
            columns=tuple(message["columns"]),
            lineage={
                column: [(each[0], each[1]) for each in sources] for column, sources in message["lineage"].items()
            },
        )

    def as_message(self) -> dict[str, Any]:
        """What goes through Pipes."""
        result = {**asdict(self.result), "offsets": dict(self.result.offsets), "inputs": dict(self.result.inputs)}
        return {"result": result, "columns": list(self.columns), "lineage": dict(self.lineage)}


def _own_command() -> list[str]:
    found = importlib.util.find_spec("pyspark")
    assert found is not None, "PySpark is a dependency"
    assert found.origin is not None, "PySpark is a package of files"
    return [str(Path(found.origin).parent / "bin" / "spark-submit")]


def driver_command(submit: Submit, settings: Settings, jars: Sequence[str]) -> list[str]:
    """
    Return the words that start a driver: the session's settings, which would come too late for a JVM that runs already.

    They stand before the options of `submit.command`, of which the last word on a setting is then the user's.
    """
    from fluvial.spark.session import session_conf

    conf = session_conf(settings, jars)
    words = [word for key, value in conf.items() if key != "spark.master" for word in ("--conf", f"{key}={value}")]
    command = list(submit.command or _own_command())
    place = next((at for at, word in enumerate(command, 1) if Path(word).name == "spark-submit"), len(command))
    return [*command[:place], "--master", settings.spark_master, *words, *command[place:], str(DRIVER)]


def run_submitted(
    context: dg.AssetExecutionContext, submit: Submit, table: str, settings: Settings, window: tuple[int, int] | None
) -> Told:
    """
    Run a table's declaration, which the module `settings.project` holds, in a driver of its own.

    Raises FluvialError with the driver's sentence where it could say one, and SubmitError where it could not.
    """
    from fluvial.spark.connect import is_remote
    from fluvial.spark.jars import require_jars
    from fluvial.spark.java import require_java

    if is_remote(settings.spark_master):
        raise SubmitError(
            f"{table}: there is no driver to start for {settings.spark_master}, the Spark Connect server is one: leave "
            "`submit` out of the policy, or name another master"
        )
    require_java()
    jars = [str(jar) for jar in require_jars(context.log.info)]
    extras = {
        "table": table,
        "window": list(window) if window else None,
        "settings": {
            "data_dir": str(settings.data_dir),
            "bootstrap_servers": settings.bootstrap_servers,
            "registry_url": settings.registry_url,
            "warehouse": settings.warehouse,
            "spark_master": settings.spark_master,
            "spark_conf": dict(settings.spark_conf),
            "project": settings.project,
        },
    }
    try:
        done = dg.PipesSubprocessClient().run(
            context=context,
            command=driver_command(submit, settings, jars),
            extras=extras,
            env={
                "PYSPARK_PYTHON": sys.executable,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                **environment_of(settings),
                **submit.environment,
            },
        )
    except dg.DagsterExecutionInterruptedError:
        raise
    except Exception as error:
        raise SubmitError(f"{table}: the driver could not be run: {error}") from error
    messages = list(done.get_custom_messages())
    if not messages:
        raise SubmitError(f"{table}: the driver ended without a word; its output is in the run's log")
    if "error" in messages[-1]:
        raise FluvialError(str(messages[-1]["error"]))
    return Told.of(messages[-1])
