"""The code location of a project without Dagster code of its own; for `dagster … -m`, imported by name only."""

from fluvial.config import load_settings
from fluvial.orchestration.run.code_location import definitions_for

defs = definitions_for(load_settings())
