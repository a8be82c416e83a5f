"""
Spark sessions, their jars, and the Kafka source.

Nothing here imports pyspark before a session is asked for: the command line starts at once, and `fluvial.spark.java`
runs on a bare Python.
"""
