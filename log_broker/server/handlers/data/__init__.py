"""Produce, Fetch and what asks about records."""
