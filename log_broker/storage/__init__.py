"""Segments, indexes and recovery on a file system."""
