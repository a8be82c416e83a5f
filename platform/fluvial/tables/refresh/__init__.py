"""Brings the tables of pipelines up to date: by keys, by parts, by rows, or by the full query."""
