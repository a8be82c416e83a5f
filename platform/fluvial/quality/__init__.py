"""Checks of the rows a run has written."""
