"""Runs outside a Dagster daemon: code locations, the instance, the Spark session, progress."""
