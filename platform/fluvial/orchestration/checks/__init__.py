"""Dagster asset checks of tables and logs, and how far tables are behind."""
