"""Dagster asset checks of tables and logs, and the lag of tables."""
