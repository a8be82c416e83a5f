"""Dagster assets made of declarations."""
