"""Streams that settle into Delta."""
