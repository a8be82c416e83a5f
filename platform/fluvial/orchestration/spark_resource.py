"""Spark as a Dagster resource: nothing starts until an asset asks for the session."""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
from pydantic import Field, PrivateAttr

from fluvial.config import Settings, load_settings
from fluvial.orchestration.instance import RUN_TAG, shared_run_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "fluvial"


class SparkResource(dg.ConfigurableResource[Any]):
    """
    The Spark session and the settings of a run.

    A field that is left out comes from the environment or `fluvial.toml`, read when the run starts: loading the
    definitions reads neither. A session that runs in this process already is used and left running; one that this
    resource started is stopped when the run ends.
    """

    data_dir: str | None = Field(default=None, description="Folder of the local platform and, by default, its tables.")
    bootstrap_servers: str | None = Field(default=None, description="Kafka bootstrap servers, host:port[,…].")
    registry_url: str | None = Field(default=None, description="URL of the schema registry.")
    warehouse: str | None = Field(default=None, description="Folder or URI that holds the tables.")
    spark_master: str | None = Field(
        default=None,
        description="Spark master: local[*], spark://host:7077, …, or sc://host:15002, a Spark Connect server.",
    )
    spark_conf: dict[str, str] = Field(default={}, description="Further Spark settings.")

    project: str | None = Field(default=None, description="Module that holds the declarations.")

    _settings: Settings | None = PrivateAttr(default=None)
    _session: Any = PrivateAttr(default=None)
    _started_here: bool = PrivateAttr(default=False)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _held: Any = PrivateAttr(default_factory=ExitStack[None])

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the resource that leaves nothing of `settings` to the environment."""
        return cls(
            data_dir=str(settings.data_dir),
            bootstrap_servers=settings.bootstrap_servers,
            registry_url=settings.registry_url,
            warehouse=settings.warehouse,
            spark_master=settings.spark_master,
            spark_conf=dict(settings.spark_conf),
            project=settings.project,
        )

    @property
    def settings(self) -> Settings:
        """The settings of this run; raises ConfigError when they do not fit together."""
        with self._lock:
            if self._settings is None:
                flags = {name: value for name in type(self).model_fields if (value := getattr(self, name))}
                self._settings = load_settings(**flags)
            return self._settings

    @property
    def session(self) -> "SparkSession":
        """The session; the first caller waits for Spark to start."""
        settings = self.settings
        with self._lock:
            if self._session is None:
                from fluvial.spark.session import build_session, has_session

                self._started_here = not has_session()
                self._session = build_session(settings, APP_NAME)
            return self._session

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Hold the lock by which others see that this run's process lives."""
        run, instance = context.run, context.instance
        if run is None or instance is None or instance.is_ephemeral or RUN_TAG in run.tags:
            return
        self._held.enter_context(shared_run_lock(Path(instance.root_directory), run.run_id))

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session if this run started it."""
        self._held.close()
        with self._lock:
            if self._session is not None and self._started_here:
                self._session.stop()
            self._session = None
