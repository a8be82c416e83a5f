"""The driver that `spark-submit` starts: brings one table up to date, and tells the Dagster run that asked for it."""

import sys

from dagster_pipes import PipesContext, open_dagster_pipes

from fluvial.catalog.registrar import Registrar
from fluvial.config import Settings, load_settings
from fluvial.errors import FluvialError
from fluvial.orchestration.assets.assets import columns_of, observed, run_declaration
from fluvial.orchestration.assets.pipes import Told
from fluvial.spark.offset_times import Window
from fluvial.spark.session import build_session
from fluvial.tables.declare.project import load_project


def main() -> int:
    """Do what the run has asked for; returns the exit status."""
    with open_dagster_pipes() as context:
        try:
            told = _run(context, load_settings(**context.get_extra("settings")))
        except FluvialError as error:
            context.report_custom_message({"error": str(error)})
            return 0
        context.report_custom_message(told.as_message())
    return 0


def _run(context: PipesContext, settings: Settings) -> Told:
    table, asked = context.get_extra("table"), context.get_extra("window")
    declared = load_project(settings.project)
    if table not in declared:
        raise FluvialError(f"the module {settings.project} declares no {table}: name the one that does as `project`")
    spark = build_session(settings, f"fluvial {table}")
    try:
        address = spark.sparkContext.uiWebUrl
        if address:
            context.log.info(f"Spark's page: {address}")
        lineage: dict[str, list[tuple[str, str]]] = {}
        window = None if asked is None else Window(start_ms=asked[0], end_ms=asked[1])
        result = run_declaration(
            observed(declared[table], lineage), settings, spark, progress=context.log.info, window=window
        )
        if (registrar := Registrar.of(settings)) is not None:
            registrar.after(declared[table], result, spark, context.log.warning)
        columns = columns_of(declared[table], result, spark)
    finally:
        spark.stop()
    return Told(result=result, columns=columns, lineage=lineage)


if __name__ == "__main__":
    sys.exit(main())
