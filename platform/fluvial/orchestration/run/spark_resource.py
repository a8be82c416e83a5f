"""Spark as a Dagster resource: nothing starts until an asset asks for the session."""

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import dagster as dg
from pydantic import Field, PrivateAttr

from fluvial.config import Settings, load_settings
from fluvial.errors import ConfigError
from fluvial.orchestration.run.instance import RUN_TAG, shared_run_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fluvial.spark.avro import Contract
    from fluvial.tables import Declaration
    from fluvial.tables.plan.result import RunResult

APP_NAME = "fluvial"


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Given:
    """What a resource is made of that Dagster is not told: settings, and contracts that are known, by table."""

    settings: Settings
    contracts: "Mapping[str, Contract]"


# What resources that live in this process were given, by numbers: Dagster keeps a snapshot of a run's fields, and these
# are the same whenever a process holds the same number of them.
_held: WeakValueDictionary[str, _Given] = WeakValueDictionary()


def _hold(given: _Given) -> str:
    number = next(str(each) for each in count(1) if str(each) not in _held)
    _held[number] = given
    return number


def _is_more_than_fields(settings: Settings) -> bool:
    """Whether they say what the fields of a resource do not."""
    return bool(settings.kafka_properties or settings.registry_properties or settings.catalog)


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

    command_config: str | None = Field(
        default=None, description="Client properties file of the cluster: TLS, user, password."
    )
    project: str | None = Field(default=None, description="Module that holds the declarations.")
    held: str | None = Field(
        default=None, description="Where this process keeps settings that it was given, with the secrets among them."
    )

    _given: _Given | None = PrivateAttr(default=None)
    _session: Any = PrivateAttr(default=None)
    _registrar: Any = PrivateAttr(default=None)
    _started_here: bool = PrivateAttr(default=False)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)
    _held: Any = PrivateAttr(default_factory=ExitStack[None])

    @classmethod
    def of(cls, settings: Settings, contracts: "Mapping[str, Contract]" = MappingProxyType({})) -> Self:
        """
        Return the resource that leaves nothing of `settings` to the environment, for runs in this process.

        `contracts`, by table, are not read again. Dagster shows a resource's fields and keeps them: what may be secret
        stays in this process's memory.
        """
        given = _Given(settings, contracts)
        made = cls(
            held=_hold(given) if _is_more_than_fields(settings) or contracts else None,
            data_dir=str(settings.data_dir),
            bootstrap_servers=settings.bootstrap_servers,
            registry_url=settings.registry_url,
            warehouse=settings.warehouse,
            spark_master=settings.spark_master,
            spark_conf=dict(settings.spark_conf),
            project=settings.project,
        )
        made._given = given
        return made

    @property
    def settings(self) -> Settings:
        """The settings of this run; raises ConfigError when they do not fit together."""
        return self._all_given().settings

    @property
    def contracts(self) -> "Mapping[str, Contract]":
        """The contracts of tables' topics, by table, that were read and checked before the run."""
        return self._all_given().contracts

    def _all_given(self) -> _Given:
        with self._lock:
            if self._given is None and self.held is not None:
                if self.held not in _held:
                    raise ConfigError("a SparkResource made of settings serves the process that made it: make another")
                self._given = _held[self.held]
            if self._given is None:
                names = type(self).model_fields.keys() - {"held"}
                given = {name: value for name in names if (value := getattr(self, name))}
                self._given = _Given(load_settings(**given), {})
            return self._given

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

    def register(self, declaration: "Declaration", result: "RunResult", say: Callable[[str], None]) -> None:
        """Have the catalog of the settings, if they name one, know what a run has left; `say` hears why it does not."""
        settings = self.settings
        if settings.catalog is None:
            return
        with self._lock:
            if self._registrar is None:
                from fluvial.catalog.registrar import Registrar

                self._registrar = Registrar.of(settings)
            self._registrar.after(declaration, result, self._session, say)

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
