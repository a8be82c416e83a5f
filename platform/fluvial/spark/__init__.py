"""
Spark sessions, their jars, the Kafka source, and topics as decoded frames.

Nothing here imports pyspark before a session is asked for: the command line starts at once, and `fluvial.spark.java`
runs on a bare Python. That is why :func:`~fluvial.spark.topics.read_topic` and
:func:`~fluvial.spark.topics.stream_topic` are looked up when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluvial.spark.topics import read_topic, stream_topic

__all__ = ["read_topic", "stream_topic"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fluvial.spark import topics

        return getattr(topics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
