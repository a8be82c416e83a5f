"""The resources of this project's assets."""

from fluvial.orchestration import SparkResource

RESOURCES = {
    # Which platform, warehouse and Spark master: FLUVIAL_* variables and fluvial.toml, read when a run starts.
    "spark": SparkResource(),
}
