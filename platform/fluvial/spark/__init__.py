"""Spark sessions, jars and the Kafka source."""
