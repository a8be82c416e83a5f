"""What the project defines beyond its declarations, one package a domain."""

from dagster_project.defs.flights.checks import SUITES

__all__ = ["SUITES"]
