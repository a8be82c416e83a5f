"""Dagster assets made from declarations."""
