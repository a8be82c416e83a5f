"""
Declarations as components of Dagster, to be written in YAML with the arguments that they have in `fluvial.tables`.

    # defs/orders/defs.yaml, begun by `dg scaffold defs fluvial.orchestration.components.History orders --topic orders`
    type: fluvial.orchestration.components.History
    attributes:
      topic: orders
      partitions: {type: hourly, start_date: "2025-01-01-00:00"}

Their names are found by `dg` through the entry point of this package; `dg list components` shows them.
"""

import importlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from pydantic import BaseModel, Field, create_model

from fluvial import tables
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
    """What all tables may be given beside their declaration; each kind of table is a component of its own."""

    group: Annotated[str | None, Field(description="The group on the page; the database unless given.")] = None
    owners: Annotated[Sequence[str] | None, Field(description="Instead of those of the contract.")] = None
    tags: Mapping[str, str] = Field(default_factory=dict)
    links: Annotated[Mapping[str, str], Field(description="Addresses by the names to show.")] = Field(
        default_factory=dict
    )
    pool: Annotated[str | None, Field(description="The concurrency pool; the table's own unless given.")] = None
    stale_after_minutes: Annotated[int | None, Field(description="A freshness policy: fails after so long.")] = None
    partitions: Annotated[
        Windows | None, Field(description="Time windows; of a history or a pipeline with windows.")
    ] = None
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
            partitions=None if self.partitions is None else self.partitions.definition,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Make the asset of the table, with Spark as its resource."""
        declared = self.declaration()
        contracts = value_contracts(_contracts(context, self.schemas))
        asset = table_asset(declared, contract=contracts.get(topic_of(declared) or ""), policy=self.policy())
        return dg.Definitions(assets=[asset])


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


class WindowsOf(dg.Model):
    """Windows over an input: `{kind: tumbling, time: ordered_at, size: 1 hour, watermark: 10 minutes}`."""

    kind: Literal["tumbling", "hopping", "session"]
    time: Annotated[str, Field(description="A column or a line of SQL of type timestamp.")]
    size: Annotated[str, Field(description="How long a window is; of a session the gap that ends it.")]
    every: Annotated[str | None, Field(description="Of hopping windows how often one begins.")] = None
    watermark: Annotated[str | None, Field(description="How far out of order records may come.")] = None
    lateness: Annotated[str | None, Field(description="How long after that they still change their window.")] = None
    emit: Literal["changes", "final"] = "changes"

    def made(self, table: str) -> tables.TimeWindows:
        """The windows as a declaration takes them."""
        words: dict[str, Any] = {"watermark": self.watermark, "lateness": self.lateness, "emit": self.emit}
        if self.kind == "hopping":
            if self.every is None:
                raise DeclarationError(f"windows of {table}: hopping windows need every: say how often one begins")
            return tables.hopping(self.time, self.size, self.every, **words)
        return (tables.tumbling if self.kind == "tumbling" else tables.session)(self.time, self.size, **words)


def _function(path: str, argument: str) -> Any:
    """The function that an argument names. Raises DeclarationError when there is none."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, ValueError, AttributeError) as error:
        raise DeclarationError(f"{argument} {path!r} is not there: {error}") from error


@dataclass(frozen=True, slots=True)
class _Written:
    """An argument that YAML has another type for: that type, and what becomes of a value of it."""

    type: Any
    read: Callable[[Any], Any]


_FOLDS = Mapping[str, FoldOf] | None
_INPUTS = Sequence[str] | Mapping[str, str | Sequence[str] | None]
_PINNED = dict[str, int] | None
_WINDOWS = Mapping[str, WindowsOf] | None
_WRITTEN: Mapping[str, _Written] = {
    "fields": _Written(
        # Dagster finds its way into lists by itself, and not into mappings.
        Annotated[_FOLDS, dg.Resolver(lambda _context, fields: fields, model_field_type=_FOLDS)],
        lambda fields: {column: fold.made(column) for column, fold in fields.items()},
    ),
    "inputs": _Written(
        Annotated[_INPUTS, dg.Resolver(lambda _context, inputs: inputs, model_field_type=_INPUTS)],
        lambda inputs: inputs,
    ),
    "pinned": _Written(
        Annotated[_PINNED, dg.Resolver(lambda _context, pinned: pinned, model_field_type=_PINNED)],
        lambda pinned: pinned,
    ),
    "reduce": _Written(str | None, partial(_function, argument="reduce")),
    "transform": _Written(str, partial(_function, argument="transform")),
    "returns": _Written(str | None, str),
    # Dagster reads a text of digits as a number, quoted or not.
    "version": _Written(str | int | None, str),
    "windows": _Written(
        Annotated[_WINDOWS, dg.Resolver(lambda _context, windows: windows, model_field_type=_WINDOWS)],
        lambda windows: {table: each.made(table) for table, each in windows.items()},
    ),
}
_DESCRIBED: Mapping[str, str] = {
    "fields": "Columns and their folds: {spent: {fold: sum, expr: amount}}.",
    "inputs": "Tables such as history.orders; for a key also what leads to it: {history.orders: customer}.",
    "key": "The column of the record key; of a pipeline the columns by which its rows are replaced.",
    "name": "The table's name; that of the topic it is made from unless given.",
    "order": "A line of SQL that says which event comes later.",
    "pinned": "Versions at which inputs are read: {compacted.cities: 12}.",
    "reduce": "A function in the place of folds, as package.module:name or package.module.name.",
    "returns": "The columns that it returns, as a line of DDL: spent DOUBLE, seen TIMESTAMP.",
    "scd2": "Keep a row for each version of an entity; by an event's time in SQL if given.",
    "table": "A table with one row a key, such as state.orders.",
    "topic": "The topic.",
    "transform": "The function, as package.module:name or package.module.name.",
    "version": "Names the code, where its text does not tell all.",
    "windows": "Windows of event time over inputs: {history.orders: {kind: tumbling, time: at, size: 1 hour}}.",
}


def _component(kind: str, declare: Callable[..., Any], *, scaffold: Sequence[str] = ()) -> type[TableComponent]:
    """
    The component of a declaration: its attributes are the arguments that `declare` takes.

    `scaffold` are those that `dg scaffold` asks for.
    """
    arguments = dict(inspect.signature(declare).parameters)
    if declare is tables.pipeline:
        arguments["transform"] = inspect.Parameter("transform", inspect.Parameter.KEYWORD_ONLY)

    class Declared(TableComponent):
        def declaration(self) -> Declaration:
            given = {name: getattr(self, name) for name in arguments}
            for name, value in given.items():
                if value is not None and name in _WRITTEN:
                    given[name] = _WRITTEN[name].read(value)
            if given.get("name", "") is None:
                given["name"] = table_name_of(given["topic"])
            transform = given.pop("transform", None)
            declared: Any = declare(**given)
            return cast("Declaration", declared if transform is None else declared(transform))

    def attribute(name: str) -> tuple[Any, Any]:
        type_, default = arguments[name].annotation, arguments[name].default
        if name in _WRITTEN:
            type_ = _WRITTEN[name].type
        if name == "name" and "topic" in arguments:
            type_, default = str | None, None
        required = default is inspect.Parameter.empty
        return type_, Field(... if required else default, description=_DESCRIBED.get(name))

    attributes: dict[str, Any] = {name: attribute(name) for name in arguments}
    made: type[TableComponent] = create_model(
        kind, __base__=Declared, __module__=__name__, __doc__=inspect.getdoc(declare), **attributes
    )
    if scaffold:
        asked = create_model(f"{kind}Scaffold", **{name: attributes[name] for name in scaffold})
        dg.scaffold_with(_scaffolder(asked))(made)
    return made


def _scaffolder(asked: type[BaseModel]) -> type[dg.Scaffolder[BaseModel]]:
    """What writes a component with the attributes that `asked` has; a state without a reducer counts events."""

    class Scaffolder(dg.Scaffolder[BaseModel]):
        @classmethod
        def get_scaffold_params(cls) -> type[BaseModel]:
            return asked

        def scaffold(self, request: dg.ScaffoldRequest[BaseModel]) -> None:
            attributes = request.params.model_dump()
            if attributes.get("reduce", "") is None:
                attributes["fields"] = {"events": {"fold": "count"}}
            scaffold_component(request, {name: value for name, value in attributes.items() if value is not None})

    return Scaffolder


History = _component("History", tables.history, scaffold=["topic"])
Compacted = _component("Compacted", tables.compacted, scaffold=["topic"])
State = _component("State", tables.state, scaffold=["topic", "key", "reduce", "returns"])
Pipeline = _component("Pipeline", tables.pipeline)
Publication = _component("Publication", tables.publish, scaffold=["table", "topic", "key"])


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


def _contracts(context: dg.ComponentLoadContext, folder: str | None) -> list[Contract]:
    path = None if folder is None else Path(context.project_root) / folder
    return load_contracts(path) if path is not None and path.is_dir() else []
