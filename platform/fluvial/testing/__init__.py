"""
What users' own tests may use; `fluvial.pytest_plugin` has it as fixtures.

`embedded_platform` runs broker and registry in this process, `events` builds what a contract allows, `run_tables`
brings declared tables up to date, `assert_frame_equal` compares rows. `simulate` runs a cluster that fails as a seed
tells it to. `certify` finds out what a sink promises.
Importing this package imports neither Spark nor the broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluvial.testing.builders import BuildError, events
    from fluvial.testing.embedded import EmbeddedPlatform, embedded_platform
    from fluvial.testing.frames import assert_frame_equal
    from fluvial.testing.sink_certifier import Certificate, certify
    from fluvial.testing.tables import Tables, run_tables
    from log_broker.sim.scenario import FAULTS, ScenarioError, SimulatedCluster, simulate

__all__ = [
    "FAULTS",
    "BuildError",
    "Certificate",
    "EmbeddedPlatform",
    "ScenarioError",
    "SimulatedCluster",
    "Tables",
    "assert_frame_equal",
    "certify",
    "embedded_platform",
    "events",
    "run_tables",
    "simulate",
]

_HOMES = {
    "fluvial.testing.builders": ("BuildError", "events"),
    "fluvial.testing.sink_certifier": ("Certificate", "certify"),
    "fluvial.testing.frames": ("assert_frame_equal",),
    "fluvial.testing.embedded": ("EmbeddedPlatform", "embedded_platform"),
    "fluvial.testing.tables": ("Tables", "run_tables"),
    "log_broker.sim.scenario": ("FAULTS", "ScenarioError", "SimulatedCluster", "simulate"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
