"""Options that several commands share, and the settings they make."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fluvial.config import Settings, load_settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Folder of the local platform that is meant (default: .fluvial).", show_default=False
    ),
]
BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        metavar="HOST:PORT[,…]",
        help="Kafka cluster to work on (default: the local platform).",
        show_default=False,
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Properties file with what the cluster asks of its clients: TLS, user, password.",
        show_default=False,
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry-url",
        metavar="URL[,…]",
        help="Schema registry to ask, at one address or several of the same (default: the local platform's).",
        show_default=False,
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(
        "--warehouse",
        metavar="PATH|URI",
        help="Where the tables lie (default: in the data directory).",
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
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be given again.", show_default=False),
]


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


AnswerFormat = Annotated[Form, typer.Option("--format", help="A table to read, or JSON for programs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


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


def pairs(flag: str, words: list[str] | None) -> dict[str, str]:
    """Read `KEY=VALUE` words."""
    read = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not key.strip() or not equals:
            raise typer.BadParameter(f"{flag} {word!r}: write KEY=VALUE")
        read[key.strip()] = value.strip()
    return read
