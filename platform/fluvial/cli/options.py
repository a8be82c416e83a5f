"""Options that several commands share, and the settings they make."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from fluvial.config import Settings, load_settings

Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="Serve by HTTPS: a PEM file with the certificates and their key.",
        exists=True,
        dir_okay=False,
        show_default=False,
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="A host name that clients use, besides its address; repeatable.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the local platform (default: .fluvial).", show_default=False),
]
BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,…]",
        help="Kafka cluster to use (default: the local platform).",
        show_default=False,
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Client properties file of the cluster: TLS, user, password.",
        show_default=False,
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry-url",
        metavar="URL[,…]",
        help="Address of the schema registry, or several addresses of the same (default: the local platform's).",
        show_default=False,
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        metavar="PATH|URI",
        help="Folder or URI of the tables (default: in the data directory).",
        show_default=False,
    ),
]
SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--spark-master",
        metavar="MASTER",
        help="Spark master, such as local[4], spark://host:7077 or sc://host:15002.",
        show_default=False,
    ),
]
Project = Annotated[
    str | None,
    typer.Option(
        "--project", metavar="MODULE", help="Module of the declarations (default: pipelines).", show_default=False
    ),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; repeatable.", show_default=False),
]


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


AnswerFormat = Annotated[Form, typer.Option("--format", help="Print a table, or JSON for programs.")]
_Json = Annotated[bool, typer.Option("--json", hidden=True)]


def settings_of(
    data_dir: Path | None = None,
    bootstrap_server: str | None = None,
    registry_url: str | None = None,
    *,
    command_config: Path | None = None,
    warehouse: str | None = None,
    spark_master: str | None = None,
    conf: list[str] | None = None,
    metrics_port: int | None = None,
) -> Settings:
    """Find the settings of a command; raises ConfigError, or a usage error for a `--conf` that is no pair."""
    return load_settings(
        data_dir=data_dir,
        bootstrap_servers=bootstrap_server,
        registry_url=registry_url,
        command_config=command_config,
        warehouse=warehouse,
        spark_master=spark_master,
        spark_conf=pairs("--conf", conf),
        metrics_port=metrics_port,
    )


_OPTIONS: dict[str, Any] = {
    "project": Project,
    "data_dir": DataDir,
    "bootstrap_server": BootstrapServer,
    "command_config": CommandConfig,
    "registry_url": RegistryUrl,
    "warehouse": Warehouse,
    "spark_master": SparkMaster,
    "conf": SparkConf,
}


def _with_options(command: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    """Give a command that takes `settings` by keyword the options they are made of, after its own."""

    @wraps(command)
    def with_settings(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in names}
        project = chosen.pop("project", None)
        settings = settings_of(**chosen)
        command(settings=settings if project is None else replace(settings, project=project), **given)

    own = inspect.signature(command, eval_str=True)
    kept = [each for each in own.parameters.values() if each.name != "settings"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_OPTIONS[name])
        for name in names
    ]
    with_settings.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    return with_settings


def with_json(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes `answer_format` the hidden flag `--json`: its former name of `--format json`."""
    own = inspect.signature(command, eval_str=True)
    json_form = type(own.parameters["answer_format"].default)("json")

    @wraps(command)
    def with_alias(*, as_json: bool, **given: Any) -> None:
        command(**(given | {"answer_format": json_form} if as_json else given))

    alias = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Json)
    with_alias.__signature__ = own.replace(parameters=[*own.parameters.values(), alias])  # type: ignore[attr-defined]
    return with_alias


def with_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a Kafka cluster; it takes the `settings` made of them."""
    return _with_options(command, ("data_dir", "bootstrap_server", "command_config"))


def with_registry(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name a schema registry; it takes the `settings` made of them."""
    return _with_options(command, ("data_dir", "registry_url"))


def with_cluster_and_registry(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `with_cluster` and `with_registry`."""
    return _with_options(command, ("data_dir", "bootstrap_server", "command_config", "registry_url"))


def with_warehouse(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name the warehouse; it takes the `settings` made of them."""
    return _with_options(command, ("data_dir", "warehouse"))


def with_cluster_and_warehouse(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `with_cluster`, and the one that names the warehouse."""
    return _with_options(command, ("data_dir", "bootstrap_server", "command_config", "warehouse"))


def with_spark(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that name the warehouse and Spark; it takes the `settings` made of them."""
    return _with_options(command, ("data_dir", "warehouse", "spark_master", "conf"))


def with_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option that a project's tables need; it takes the `settings` made of them."""
    return _with_options(command, tuple(_OPTIONS))


def pairs(flag: str, words: list[str] | None) -> dict[str, str]:
    """Read `KEY=VALUE` words."""
    read = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not key.strip() or not equals:
            raise typer.BadParameter(f"{flag} {word!r}: write KEY=VALUE")
        read[key.strip()] = value.strip()
    return read
