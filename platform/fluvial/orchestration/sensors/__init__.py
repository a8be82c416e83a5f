"""Dagster sensors: what starts a run when records or data come."""
