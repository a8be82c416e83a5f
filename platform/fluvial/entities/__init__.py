"""Declarations of history, compacted and state tables, and their execution."""
