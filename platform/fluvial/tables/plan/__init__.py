"""Spark plans for a batch: what is read, reduced, compared and written."""
