"""
The factories as components of Dagster, to be written in YAML.

    # defs/orders/defs.yaml, begun by `dg scaffold defs fluvial.orchestration.components.History orders --topic orders`
    type: fluvial.orchestration.components.History
    attributes:
      topic: orders
      partitions: {type: hourly, start_date: "2025-01-01-00:00"}

Their names are found by `dg` through the entry point of this package; `dg list components` shows them.
"""

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field

from fluvial import tables as entities
from fluvial.orchestration.assets.assets import assets_for, table_asset
from fluvial.orchestration.assets.graph import source_specs, topic_of, topic_spec, value_contracts
from fluvial.orchestration.assets.policies import Policy
from fluvial.orchestration.checks.checks import checks_for, contract_suites
from fluvial.orchestration.checks.log_checks import Allowed, lag_checks, reconciliation_checks
from fluvial.orchestration.run.spark_resource import SparkResource
from fluvial.orchestration.sensors.sensors import SECONDS_BETWEEN, offsets_sensor
from fluvial.registry.contracts import Contract, load_contracts
from fluvial.spark.warehouse import table_name_of
from fluvial.tables import Declaration, DeclarationError
from fluvial.tables.declare import folds
from fluvial.tables.declare.project import load_project


class Windows(dg.Model, dg.Resolvable):
    """The time windows of a history."""

    type: Literal["hourly", "daily"] = "hourly"
    start_date: str = Field(description="The first window: 2025-01-01-00:00 for hours, 2025-01-01 for days.")
    timezone: str = "UTC"
    end_offset: int = Field(default=0, description="1 counts the window that has not ended yet as well.")

    @property
    def definition(self) -> dg.TimeWindowPartitionsDefinition:
        """The partitions as Dagster has them."""
        kind = dg.HourlyPartitionsDefinition if self.type == "hourly" else dg.DailyPartitionsDefinition
        return kind(start_date=self.start_date, timezone=self.timezone, end_offset=self.end_offset)


class TableComponent(dg.Component, dg.Model, dg.Resolvable):
    """What all tables may be given; each kind of table is a component of its own."""

    group: Annotated[str | None, Field(description="The group on the page; the database unless given.")] = None
    owners: Annotated[Sequence[str] | None, Field(description="Instead of those of the contract.")] = None
    tags: Mapping[str, str] = Field(default_factory=dict)
    links: Annotated[Mapping[str, str], Field(description="Addresses by the names to show.")] = Field(
        default_factory=dict
    )
    pool: Annotated[str | None, Field(description="The concurrency pool; the table's own unless given.")] = None
    stale_after_minutes: Annotated[int | None, Field(description="A freshness policy: fails after so long.")] = None
    schemas: Annotated[str | None, Field(description="Folder of contracts, from the project's root.")] = None

    @abstractmethod
    def declaration(self) -> Declaration:
        """The table that is declared."""

    def policy(self) -> Policy:
        """How it is run and watched."""
        stale = self.stale_after_minutes
        return Policy(
            group=self.group,
            owners=None if self.owners is None else tuple(self.owners),
            tags=self.tags,
            links=self.links,
            pool=self.pool,
            freshness=None if stale is None else dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=stale)),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the asset of the table, with Spark as its resource."""
        declared = self.declaration()
        contracts = value_contracts(_contracts(context, self.schemas))
        asset = table_asset(declared, contract=contracts.get(topic_of(declared) or ""), policy=self.policy())
        return dg.Definitions(assets=[asset])


class TopicScaffold(BaseModel):
    """What `dg scaffold` asks for."""

    topic: str = Field(description="The topic to read.")


class TopicScaffolder(dg.Scaffolder[TopicScaffold]):
    """Writes a table of one topic."""

    @classmethod
    def get_scaffold_params(cls) -> type[TopicScaffold]:
        return TopicScaffold

    def scaffold(self, request: dg.ScaffoldRequest[TopicScaffold]) -> None:
        scaffold_component(request, {"topic": request.params.topic})


@dg.scaffold_with(TopicScaffolder)
class History(TableComponent):
    """Every event of a topic, in a table that only grows; by time windows where they are given."""

    topic: str
    name: Annotated[str | None, Field(description="The table's name; the topic's unless given.")] = None
    partitions: Windows | None = None

    def declaration(self) -> Declaration:
        """The history that is declared."""
        return entities.history(self.topic, name=self.name)

    def policy(self) -> Policy:
        """How it is run and watched."""
        from dataclasses import replace

        return replace(super().policy(), partitions=None if self.partitions is None else self.partitions.definition)


@dg.scaffold_with(TopicScaffolder)
class Compacted(TableComponent):
    """The latest event of each key of a topic."""

    topic: str
    name: str | None = None
    key: Annotated[str | None, Field(description="The column that holds the record key.")] = None

    def declaration(self) -> Declaration:
        """The compacted table that is declared."""
        return entities.compacted(self.topic, name=self.name, key=self.key)


class FoldOf(dg.Model):
    """How the events of an entity become one value: `{fold: sum, expr: amount, where: "status = 'PAID'"}`."""

    fold: Literal[
        "latest", "last_non_null", "first", "sum", "count", "min", "max", "mean", "collect_set", "count_distinct"
    ]
    expr: Annotated[str | None, Field(description="A column or a line of SQL; a count has none.")] = None
    where: Annotated[str | None, Field(description="A condition in SQL for the events that count.")] = None

    def made(self, column: str) -> folds.Fold:
        """The fold as a declaration takes it."""
        if self.fold == "count":
            return folds.count(self.where)
        if self.expr is None:
            raise DeclarationError(f"field {column}: {self.fold} needs an expr: name a column or write a line of SQL")
        make = getattr(folds, self.fold if hasattr(folds, self.fold) else f"{self.fold}_")
        made: folds.Fold = make(self.expr, self.where) if self.where is not None else make(self.expr)
        return made


class StateScaffold(TopicScaffold):
    """What `dg scaffold` asks for."""

    key: str = Field(description="The column of the record key.")
    reduce: str | None = Field(default=None, description="A reducer in the place of folds, as package.module:name.")
    returns: str | None = Field(default=None, description="The columns of a reducer's state, as a line of DDL.")


class StateScaffolder(dg.Scaffolder[StateScaffold]):
    """Writes a state of a reducer, or one that counts the events of each entity."""

    @classmethod
    def get_scaffold_params(cls) -> type[StateScaffold]:
        return StateScaffold

    def scaffold(self, request: dg.ScaffoldRequest[StateScaffold]) -> None:
        asked = request.params.model_dump(exclude_none=True)
        if "reduce" not in asked:
            asked["fields"] = {"events": {"fold": "count"}}
        scaffold_component(request, asked)


@dg.scaffold_with(StateScaffolder)
class State(TableComponent):
    """One row an entity, or one for each version of it, made from the events of a topic by folds or by a reducer."""

    topic: str
    key: str
    fields: Annotated[
        Mapping[str, FoldOf],
        # Dagster finds its way into lists by itself, and not into mappings.
        dg.Resolver(lambda _context, fields: fields, model_field_type=Mapping[str, FoldOf]),
        Field(description="Columns and their folds."),
    ] = Field(default_factory=dict)
    name: Annotated[str | None, Field(description="The table's name; the topic's unless given.")] = None
    order: Annotated[str | None, Field(description="A line of SQL that says which event comes later.")] = None
    reduce: Annotated[
        str | None,
        Field(description="A function in the place of folds, as package.module:name or package.module.name."),
    ] = None
    returns: Annotated[
        str | None, Field(description="The columns that it returns, as a line of DDL: spent DOUBLE, seen TIMESTAMP.")
    ] = None
    version: Annotated[
        str | int | None, Field(description="Names the reducer's code, where its text does not tell all.")
    ] = None
    scd2: Annotated[
        bool | str, Field(description="Keep a row for each version of an entity; by an event's time in SQL if given.")
    ] = False

    def declaration(self) -> Declaration:
        """The state that is declared; raises DeclarationError when there is no such reducer."""
        return entities.state(
            self.name or table_name_of(self.topic),
            topic=self.topic,
            key=self.key,
            fields={column: each.made(column) for column, each in self.fields.items()},
            order=self.order,
            reduce=None if self.reduce is None else _function("reduce", self.reduce),
            returns=self.returns,
            version=_text(self.version),
            scd2=self.scd2,
        )


class Pipeline(TableComponent):
    """A Spark transform of one's own, from tables to a table of `marts`."""

    inputs: Annotated[Sequence[str], Field(description="Tables such as history.orders.")]
    output: Annotated[str, Field(description="The table's name in marts.")]
    transform: Annotated[str, Field(description="The function, as package.module:name or package.module.name.")]
    version: str | int | None = None
    co_partitioned: Annotated[bool, Field(description="Refuse topics with different numbers of partitions.")] = False

    def declaration(self) -> Declaration:
        """The pipeline that is declared; raises DeclarationError when there is no such function."""
        declare = entities.pipeline(
            name=self.output,
            inputs=list(self.inputs),
            version=_text(self.version),
            co_partitioned=self.co_partitioned,
        )
        return declare(_function("transform", self.transform))


class PublicationScaffold(BaseModel):
    """What `dg scaffold` asks for."""

    table: str = Field(description="The table to publish, such as state.orders.")
    topic: str = Field(description="The topic to write; a new one is made.")
    key: str = Field(description="The column that becomes the record key.")


class PublicationScaffolder(dg.Scaffolder[PublicationScaffold]):
    """Writes the publication of a table."""

    @classmethod
    def get_scaffold_params(cls) -> type[PublicationScaffold]:
        return PublicationScaffold

    def scaffold(self, request: dg.ScaffoldRequest[PublicationScaffold]) -> None:
        scaffold_component(request, request.params.model_dump())


@dg.scaffold_with(PublicationScaffolder)
class Publication(TableComponent):
    """The changes of a table, written to a topic: the asset of the topic, below that of the table."""

    table: Annotated[str, Field(description="A table with one row a key, such as state.orders.")]
    topic: Annotated[str, Field(description="The topic to write; a new one is made.")]
    key: Annotated[str, Field(description="The column that becomes the record key.")]

    def declaration(self) -> Declaration:
        """The publication that is declared."""
        return entities.publish(self.table, topic=self.topic, key=self.key)


class Sources(dg.Component, dg.Model, dg.Resolvable):
    """The contracts of a folder, and the topics that they describe, as external assets with owners and columns."""

    schemas: Annotated[str, Field(description="Folder of contracts, from the project's root.")] = "schemas"
    topics: Annotated[Sequence[str], Field(description="Further topics, which have no contract there.")] = ()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make one external asset a contract and topic."""
        contracts = _contracts(context, self.schemas)
        described = {topic for contract in contracts for topic in contract.topics}
        return dg.Definitions(
            assets=[
                *source_specs([], contracts),
                *(topic_spec(topic, []) for topic in self.topics if topic not in described),
            ]
        )


class Project(dg.Component, dg.Model, dg.Resolvable):
    """
    All that a module declares, with contracts, topics, checks and the sensor on new offsets.

    One of these is a whole code location.
    """

    module: Annotated[str, Field(description="The module or package of the declarations.")] = "pipelines"
    schemas: Annotated[str | None, Field(description="Folder of contracts, from the project's root.")] = "schemas"
    sensor: Annotated[bool, Field(description="Whether new offsets start runs.")] = True
    seconds_between: int = SECONDS_BETWEEN
    verify: Annotated[bool, Field(description="Whether each table has a check that proves it from the log.")] = False
    lag_max: Annotated[int | None, Field(description="The lag that a table may have, in records.")] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the assets, checks and sensor of the module's declarations."""
        declared = load_project(self.module)
        contracts = _contracts(context, self.schemas)
        checks = checks_for(contract_suites(declared, contracts))
        if self.verify:
            checks += reconciliation_checks(declared)
        if self.lag_max is not None:
            checks += lag_checks(declared, allowed=Allowed(records=self.lag_max))
        return dg.Definitions(
            assets=assets_for(declared, contracts=contracts),
            asset_checks=checks,
            sensors=[offsets_sensor(declared, seconds_between=self.seconds_between)] if self.sensor else [],
        )


class Spark(dg.Component, dg.Model, dg.Resolvable):
    """The Spark session of the runs; what is left out comes from the environment or `fluvial.toml`."""

    master: Annotated[
        str | None, Field(description="local[*], spark://host:7077, yarn, k8s://https://host, sc://host:15002.")
    ] = None
    conf: Mapping[str, str] = Field(default_factory=dict)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the resource that the tables' assets ask for."""
        spark: Any = SparkResource(spark_master=self.master, spark_conf=dict(self.conf))
        return dg.Definitions(resources={"spark": spark}, executor=dg.in_process_executor)


def _function(attribute: str, path: str) -> Any:
    """The function that an attribute names. Raises DeclarationError when there is none."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise DeclarationError(f"{attribute} {path!r} is not there: {error}") from error


def _text(version: str | int | None) -> str | None:
    # Dagster reads a text of digits as a number, quoted or not.
    return None if version is None else str(version)


def _contracts(context: dg.ComponentLoadContext, folder: str | None) -> list[Contract]:
    path = None if folder is None else Path(context.project_root) / folder
    return load_contracts(path) if path is not None and path.is_dir() else []
