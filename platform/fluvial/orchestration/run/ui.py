"""The command that shows the project on Dagster's own web page."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fluvial.config import Settings, environment_of
from fluvial.free_ports import free_ports
from fluvial.http_exposure import Exposure
from fluvial.orchestration.run.code_location import definitions_module
from fluvial.orchestration.run.instance import close_dead_runs, home_of, open_instance

ANSWER_SECONDS = 180
"""
How long a code server may take for an answer, such as that it has started a run. With Dagster's own 60 s a run fails
whose process is begun on a machine that has much else to do.
"""


_HERE = Exposure()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A process to start: its arguments, the variables to add to its environment, and the page it will serve."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    port: int
    url: str


def ui_command(settings: Settings, *, port: int | None = None, exposure: Exposure = _HERE) -> Command:
    """
    Return the command that serves the page, with the daemon that starts runs, sensors and schedules.

    `port` None takes one that is free. Runs that a killed process left open are closed first.
    """
    home = home_of(settings.data_dir)
    with open_instance(home) as instance:
        close_dead_runs(instance, home)
    served_on = port or free_ports(exposure.host)
    return Command(
        argv=(
            sys.executable,
            *("-m", "fluvial.dagster_page", "dev"),
            *("-m", definitions_module(Path.cwd())),
            *("--host", exposure.host, "--port", str(served_on)),
            *("--log-level", "warning"),
        ),
        environment={**_environment(settings, home), **exposure.environment},
        host=exposure.host,
        port=served_on,
        url=exposure.url(served_on),
    )


def _environment(settings: Settings, home: Path) -> dict[str, str]:
    """Say which platform is meant to the code servers, which call `load_settings` themselves."""
    return {
        **environment_of(settings),
        "DAGSTER_HOME": str(home),
        "DAGSTER_GRPC_TIMEOUT_SECONDS": os.environ.get("DAGSTER_GRPC_TIMEOUT_SECONDS") or str(ANSWER_SECONDS),
        # Dagster would rather see `dg dev`, which is a package of its own and serves the same page.
        "PYTHONWARNINGS": "ignore:Function `dev_command` is superseded",
        # The working directory is where Python finds the project's modules.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
    }
